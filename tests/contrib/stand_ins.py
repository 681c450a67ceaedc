"""Modules in place of FlashInfer, vLLM and FlashMLA, in torch on a CPU: sound ones, or with one
planted bug.

They have the functions that the files of contrib/ call, with the same parameters. `install` puts
them into sys.modules.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

E4M3 = torch.float8_e4m3fn
RANK = 512
BUGS = {
    "flashinfer": (
        "ignores-strides",
        "no-lse",
        "trusts-lengths",
        "writes-input",
        "unclear",
        "mask-is-a-score",
        "half-pages",
    ),
    "padded-rows": ("zero-over-zero", "reads-padding"),
    "sparse": (
        "logits-past-end",
        "topk-short",
        "topk-unwritten",
        "topk-by-position",
        "maps-minus-one",
        "attends-to-minus-one",
    ),
    "flashmla": (
        "fp8-descale-k-unused",
        "fp8-tail-of-last-page",
        "fp8-causal-off-by-one",
        "fp8-zero-over-zero",
    ),
}
"""File of contrib/ -> the bugs that it must find."""


class BatchMLAPagedAttentionWrapper:
    """FlashInfer's wrapper, which checks what a host can see."""

    bug = ""

    def __init__(self, workspace: Tensor, *, backend: str = "auto") -> None:
        self.planned: dict[str, Any] = {}

    def plan(
        self,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        kv_indices: Tensor,
        kv_len_arr: Tensor,
        num_heads: int,
        head_dim_ckv: int,
        head_dim_kpe: int,
        page_size: int,
        causal: bool,
        sm_scale: float,
        q_type: Any,
        kv_type: Any,
    ) -> None:
        self.planned = dict(
            indices=kv_indices,
            starts=kv_indptr,
            page_size=page_size,
            scale=sm_scale,
            heads=num_heads,
        )
        if self.bug == "unclear" and kv_len_arr.dtype != torch.int32:
            raise ValueError("bad argument")
        for name, tensor in (
            ("qo_indptr", qo_indptr),
            ("kv_indptr", kv_indptr),
            ("kv_len_arr", kv_len_arr),
        ):
            _refuse(tensor.is_floating_point(), f"{name} must be of an integer type")
        _refuse(
            len(kv_len_arr) + 1 != len(kv_indptr), "kv_len_arr has other requests than kv_indptr"
        )
        self.planned["lens"] = kv_len_arr.clamp(min=0)
        pages = (self.planned["lens"] + page_size - 1) // page_size
        self.planned["queries"] = int(qo_indptr[-1])
        _refuse(
            self.planned["queries"] != len(qo_indptr) - 1,
            "qo_indptr does not end with the last query",
        )
        for name, tensor in (("qo_indptr", qo_indptr), ("kv_indptr", kv_indptr)):
            _refuse(bool((tensor.diff() < 0).any() or tensor.min() < 0), f"{name} falls")
        _refuse(int(kv_indptr[-1]) > len(kv_indices), "kv_indptr passes the end of kv_indices")
        if self.bug != "trusts-lengths":
            _refuse(bool((pages > kv_indptr.diff()).any()), "kv_len_arr is longer than its pages")
        self.planned["lens"] = torch.minimum(self.planned["lens"], kv_indptr.diff() * page_size)

    def run(
        self,
        q_nope: Tensor,
        q_pe: Tensor,
        ckv_cache: Tensor,
        kpe_cache: Tensor,
        *,
        out: Tensor,
        lse: Tensor,
        return_lse: bool,
        return_lse_base_on_e: bool,
    ) -> tuple[Tensor, Tensor]:
        planned = self.planned
        _refuse(q_nope.dtype != torch.bfloat16, "q_nope has another type than planned")
        _refuse(len(q_nope) != planned["queries"], "q_nope has other requests than qo_indptr")
        if self.bug == "half-pages":
            ckv_cache, kpe_cache = (
                ckv_cache.reshape(-1, 64, RANK),
                kpe_cache.reshape(-1, 64, kpe_cache.shape[-1]),
            )
        if self.bug == "ignores-strides":
            ckv_cache = torch.as_strided(
                ckv_cache, ckv_cache.shape, torch.empty_like(ckv_cache).contiguous().stride()
            )
        if self.bug == "writes-input":
            q_pe.view(-1)[0] = 1
        q, cache = (
            torch.cat([q_nope, q_pe], -1).double(),
            torch.cat([ckv_cache, kpe_cache], -1).double(),
        )
        for i, length in enumerate(planned["lens"].tolist()):
            pages = planned["indices"][planned["starts"][i] : planned["starts"][i + 1]].long()
            keys = cache[pages].flatten(0, 1)[:length]
            scores = q[i] @ keys.T * planned["scale"]
            if self.bug == "mask-is-a-score":
                keys = keys * 0 if bool((scores < -5e4).all()) else keys
            out[i] = (scores.softmax(-1) @ keys[:, :RANK]).to(out.dtype)
            if self.bug != "no-lse":
                lse[i] = scores.logsumexp(-1).float() if length else -torch.inf
        return out, lse


def _refuse(is_wrong: bool, words: str) -> None:
    if is_wrong:
        raise ValueError(words)


def triton_decode(bug: str, **call: Any) -> None:
    """vLLM's Triton decode, in its own outputs."""
    for i, length in enumerate(call["b_seq_len"].tolist()):
        if not length and bug == "zero-over-zero":
            call["o"][i] = torch.nan
        seen = length + 3 if bug == "reads-padding" and 0 in call["b_seq_len"] else length
        keys = call["k_buffer"][call["req_to_token"][i].long()].flatten(0, 2)[:seen].double()
        if length:
            scores = call["q"][i].double() @ keys.T * call["sm_scale"]
            call["o"][i] = (scores.softmax(-1) @ keys[:, :RANK]).to(call["o"].dtype)
            call["lse"][i] = scores.logsumexp(-1).float()


def scaled_fp8_quant(rows: Tensor) -> tuple[Tensor, Tensor]:
    """One scale for all rows [T, D], as vLLM's dynamic quantization per tensor."""
    scale = (rows.abs().max().float() / 448).clamp(min=1e-12).reshape(1)
    return (rows.float() / scale).clamp(-448, 448).to(E4M3), scale


def paged_logits(
    bug: str,
    q: Any,
    cache: Tensor,
    weights: Tensor,
    lens: Tensor,
    table: Tensor,
    plan: Any,
    columns: int,
) -> Tensor:
    """DeepGEMM's paged logits [B * S, columns] float32."""
    page = cache.shape[1]
    flat = cache.reshape(len(cache), -1)
    keys = flat[:, : page * 128].contiguous().view(E4M3).view(-1, page, 128).float()
    keys = keys * flat[:, page * 128 :].contiguous().view(torch.float32)[..., None]
    scores = torch.einsum("bshd,bnd->bshn", q[0].float(), keys[table.long()].flatten(1, 2)).relu()
    if bug == "logits-past-end":
        scores = scores.roll(1, -1)
    return (scores * weights.view(*scores.shape[:3], 1)).sum(2).flatten(0, 1)[:, :columns]


def select_topk(
    bug: str, logits: Tensor, lens: Tensor, next_n: int, out: Tensor, topk: int, longest: int
) -> None:
    """The best positions of each row in `out`, -1 past them."""
    for row, length in enumerate(lens.flatten().tolist()):
        count = min(topk, length) - (bug == "topk-short" and length > 1)
        best = (
            logits[row, :length].topk(count).indices
            if bug != "topk-by-position"
            else torch.arange(count)
        )
        if bug != "topk-unwritten":
            out[row] = -1
        out[row, :count] = best.int()


def map_indices(
    bug: str, requests: Tensor, table: Tensor, positions: Tensor, *, BLOCK_SIZE: int, **_: Any
) -> Tensor:
    """Slots of positions [T, K], -1 for -1."""
    pages = table[requests.long()].long().gather(1, positions.clamp(min=0).long() // BLOCK_SIZE)
    slots = pages * BLOCK_SIZE + positions.clamp(min=0) % BLOCK_SIZE
    return (slots if bug == "maps-minus-one" else torch.where(positions < 0, -1, slots)).int()


def sparse_attention(
    bug: str, *, q: Tensor, kv: Tensor, indices: Tensor, sm_scale: float, d_v: int
) -> tuple[Any, ...]:
    """FlashMLA's sparse forward: out [T, H, d_v]."""
    out = torch.zeros(*q.shape[:2], d_v, dtype=q.dtype)
    for row, slots in enumerate(indices[:, 0]):
        keys = kv[
            slots.long() if bug == "attends-to-minus-one" else slots[slots >= 0].long(), 0
        ].double()
        out[row] = ((q[row].double() @ keys.T * sm_scale).softmax(-1) @ keys[:, :d_v]).to(out.dtype)
    return out, None, None


def dense_fp8(
    bug: str,
    q: Tensor,
    cache: Tensor,
    table: Tensor,
    lens: Tensor,
    d_v: int,
    plan: Any,
    splits: Any,
    *,
    causal: bool,
    descale_q: Tensor,
    descale_k: Tensor,
) -> tuple[Tensor, Tensor]:
    """FlashMLA's dense decode over e4m3: out [B, S, H, d_v] bfloat16, lse [B, H, S] float32."""
    out = torch.zeros(*q.shape[:3], d_v, dtype=torch.bfloat16)
    lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), torch.inf)
    flat = cache.view(torch.uint8)
    for i, length in enumerate(lens.tolist()):
        pages = table[i, : -(-length // cache.shape[1])].long()
        keys = flat[pages].view(E4M3).double().flatten(0, 2)
        keys = keys if bug == "fp8-descale-k-unused" else keys * descale_k.double()
        for s in range(q.shape[1]):
            seen = (
                length - q.shape[1] + s + 1 + (bug == "fp8-causal-off-by-one") if causal else length
            )
            seen = min(length, seen)
            if seen <= 0:
                if bug == "fp8-zero-over-zero":
                    out[i, s] = torch.nan
                continue
            scores = (q[i, s].double() * descale_q) @ keys.T * q.shape[3] ** -0.5
            weights = scores[:, :seen].softmax(-1)
            out[i, s] = (weights @ keys[:seen, :d_v]).to(out.dtype)
            if bug == "fp8-tail-of-last-page":
                out[i, s] += (0 * keys[seen:, :d_v].sum(0)).to(out.dtype)
            lse[i, :, s] = scores[:, :seen].logsumexp(-1).float()
    return out, lse


def modules(bug: str = "") -> dict[str, ModuleType]:
    """The stand-ins by module name, all with this bug if it is one of theirs."""

    def with_bug(function: Any) -> Any:
        return lambda *args, **keywords: function(bug, *args, **keywords)

    wrapper = type("Wrapper", (BatchMLAPagedAttentionWrapper,), {"bug": bug})
    workspace = dict(_manager=True, init_workspace_manager=lambda device: None)
    platform = ModuleType("platform")
    platform.__dict__.update(device_type="cpu")
    flashmla = dict(
        flash_mla_sparse_fwd=with_bug(sparse_attention),
        is_flashmla_sparse_supported=lambda: (True, None),
        flash_mla_with_kvcache_fp8=with_bug(dense_fp8),
        get_mla_metadata_dense_fp8=lambda *args: (None, None),
    )
    deepgemm = dict(
        fp8_fp4_paged_mqa_logits=with_bug(paged_logits),
        get_num_sms=lambda: 1,
        get_paged_mqa_logits_metadata=lambda *args: None,
    )
    sparse_utils = dict(triton_convert_req_index_to_global_index=with_bug(map_indices))
    contents: dict[str, dict[str, Any]] = {
        "flashinfer.mla": dict(BatchMLAPagedAttentionWrapper=wrapper),
        "flashinfer.utils": dict(is_sm90a_supported=lambda device: True),
        "vllm._custom_ops": dict(scaled_fp8_quant=scaled_fp8_quant),
        "vllm.platforms": dict(current_platform=platform),
        "vllm.v1.attention.ops.triton_decode_attention": dict(
            decode_attention_fwd=with_bug(triton_decode)
        ),
        "vllm.v1.attention.ops.flashmla": flashmla,
        "vllm.v1.attention.backends.mla.sparse_utils": sparse_utils,
        "vllm.model_executor.layers.indexer_topk": dict(
            get_indexer_topk=lambda backend: with_bug(select_topk)
        ),
        "vllm.utils.deep_gemm": deepgemm,
        "vllm.utils.import_utils": dict(has_deep_gemm=lambda: True),
        "vllm.v1.worker": {},
        "vllm.v1.worker.workspace": workspace,
    }
    found: dict[str, ModuleType] = {}
    for name, content in contents.items():
        found[name] = ModuleType(name)
        found[name].__dict__.update(content)
    for name in ("flashinfer", "vllm"):
        found[name] = ModuleType(name)
    found["flashinfer"].__dict__["mla"] = found["flashinfer.mla"]
    found["vllm"].__dict__["_custom_ops"] = found["vllm._custom_ops"]
    found["vllm.v1.worker"].__dict__["workspace"] = found["vllm.v1.worker.workspace"]
    return found


def install(bug: str = "") -> None:
    """For a conftest.py: all stand-ins into sys.modules."""
    sys.modules.update(modules(bug))
