"""What vLLM's writers and readers of records are handed, and what comes back: stand-ins compute in
torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_poison.patterns import Poison

from harness.core.cases import Case
from harness.core.catalog import KERNELS, ORACLES, SITES
from harness.core.kernels import KernelSpec
from harness.evidence.records import Evidence
from harness.judge.targets import kernel as kernel_target
from harness.judge.targets.kernel import KernelTarget
from harness.ops.mla_decode_sparse import reference as mla_decode_sparse_reference
from harness.ops.parts.record_formats import decode, encode, stored
from harness.ops.read_records.kernels.dense import read_records
from harness.ops.write_records.kernels.dense import write_records
from mla_harness_vllm import record_kernels

ROCM = "vllm.v1.attention.ops.rocm_aiter_mla_sparse"


class CustomOps:
    """vLLM's ops with the parameters of 0.26.0, which keep the formats by the torch kernels."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}

    def concat_and_cache_mla(
        self,
        kv_c: Tensor,
        k_pe: Tensor,
        kv_cache: Tensor,
        slot_mapping: Tensor,
        kv_cache_dtype: str,
        scale: Tensor,
    ) -> None:
        assert kv_c.shape[1] == 512 and slot_mapping.dtype == torch.int64
        self.seen["kv_cache_dtype"] = kv_cache_dtype
        name = "bf16" if kv_cache_dtype == "auto" else kv_cache_dtype
        assert kv_cache.dtype == (torch.bfloat16 if name == "bf16" else torch.uint8)
        factor = float(scale) if name == "fp8_e4m3" else None
        rows, cache = torch.cat((kv_c, k_pe), dim=1), kv_cache.view(torch.uint8)
        write_records(rows, cache, slot_mapping, record_format=name, scale=factor)

    def indexer_k_quant_and_cache(
        self,
        k: Tensor,
        kv_cache: Tensor,
        slot_mapping: Tensor,
        quant_block_size: int,
        kv_cache_dtype: str,
    ) -> None:
        assert (quant_block_size, kv_cache_dtype) == (128, "ue8m0")
        kept = slot_mapping >= 0
        rows = k[kept].float()
        scale = torch.exp2((rows.abs().amax(dim=1).clamp(min=1e-4) / 448).log2().ceil())
        blocks, page = kv_cache.flatten(1), kv_cache.shape[1]
        for row, factor, slot in zip(rows, scale, slot_mapping[kept].tolist(), strict=True):
            codes = (row / factor).to(torch.float8_e4m3fn).view(torch.uint8)
            block, offset = divmod(slot, page)
            blocks[block, offset * 128 : offset * 128 + 128] = codes
            blocks[block, page * 128 + 4 * offset : page * 128 + 4 * offset + 4] = factor.reshape(
                1
            ).view(torch.uint8)

    def reshape_and_cache_flash(
        self,
        key: Tensor,
        value: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        slot_mapping: Tensor,
        kv_cache_dtype: str,
        k_scale: Tensor,
        v_scale: Tensor,
    ) -> None:
        assert kv_cache_dtype == "nvfp4" and key_cache.stride() == value_cache.stride()
        for rows, cache, name, scale in (
            (key, key_cache, "nvfp4_linear", k_scale),
            (value, value_cache, "nvfp4_swizzled", v_scale),
        ):
            write_records(
                rows[:, 0], cache[:, :, 0], slot_mapping, record_format=name, scale=float(scale)
            )

    def gather_and_maybe_dequant_cache(
        self,
        src_cache: Tensor,
        dst: Tensor,
        block_table: Tensor,
        cu_seq_lens: Tensor,
        token_to_seq: Tensor,
        num_tokens: int,
        kv_cache_dtype: str,
        scale: Tensor,
        seq_starts: Tensor | None = None,
    ) -> None:
        assert token_to_seq.dtype == torch.int32 and len(token_to_seq) == num_tokens == len(dst)
        assert token_to_seq.tolist() == [
            b for b, n in enumerate(cu_seq_lens.diff().tolist()) for _ in range(n)
        ]
        name = "bf16" if kv_cache_dtype == "auto" else kv_cache_dtype
        factor = float(scale) if name == "fp8_e4m3" else None
        cache = src_cache.view(torch.uint8)
        dst.copy_(read_records(cache, block_table, cu_seq_lens, record_format=name, scale=factor))

    def cp_gather_and_upconvert_fp8_kv_cache(
        self,
        src_cache: Tensor,
        dst: Tensor,
        block_table: Tensor,
        workspace_starts: Tensor,
        batch_size: int,
    ) -> None:
        assert batch_size == len(block_table) == len(workspace_starts)
        starts = torch.cat((workspace_starts, torch.tensor([len(dst)], dtype=torch.int32)))
        dst.copy_(read_records(src_cache, block_table, starts, record_format="fp8_ds_mla"))

    def cp_gather_indexer_k_quant_cache(
        self,
        kv_cache: Tensor,
        dst_k: Tensor,
        dst_scale: Tensor,
        block_table: Tensor,
        cu_seq_lens: Tensor,
    ) -> None:
        self.gather_keys(kv_cache, dst_k, dst_scale, block_table, cu_seq_lens, "indexer_planar")

    @staticmethod
    def gather_keys(
        cache: Tensor, k: Tensor, scale: Tensor, table: Tensor, starts: Tensor, name: str
    ) -> None:
        slots = [
            int(table[b, at // 64]) * 64 + at % 64
            for b, length in enumerate(starts.diff().tolist())
            for at in range(length)
        ]
        found = stored(cache, torch.tensor(slots), name)
        k.view(torch.uint8).copy_(found[:, :128])
        scale.copy_(found[:, 128:])


class OlderOps(CustomOps):
    """Up to 0.24 the gather of fp8_ds_mla asks for the lengths."""

    def cp_gather_and_upconvert_fp8_kv_cache(  # type: ignore[override]
        self,
        src_cache: Tensor,
        dst: Tensor,
        block_table: Tensor,
        seq_lens: Tensor,
        workspace_starts: Tensor,
        batch_size: int,
    ) -> None:
        assert torch.equal(
            workspace_starts + seq_lens,
            torch.cat((workspace_starts[1:], seq_lens.new_tensor([133]))),
        )
        super().cp_gather_and_upconvert_fp8_kv_cache(
            src_cache, dst, block_table, workspace_starts, batch_size
        )


class Shuffled(ModuleType):
    """ROCm's pair."""

    @staticmethod
    def indexer_k_quant_and_cache_triton(
        k: Tensor, cache: Tensor, slots: Tensor, size: int, scales: str
    ) -> None:
        assert k.is_contiguous() and (size, scales) == (128, "ue8m0")
        write_records(k, cache, slots, record_format="indexer_shuffled")

    @staticmethod
    def cp_gather_indexer_k_quant_cache_triton(
        cache: Tensor, k: Tensor, scale: Tensor, table: Tensor, starts: Tensor, requests: Tensor
    ) -> None:
        assert len(requests) == len(k)
        CustomOps.gather_keys(cache, k, scale, table, starts, "indexer_shuffled")


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Callable[[CustomOps], CustomOps]:
    """vllm(ops): put stand-ins in the place of vLLM's modules."""

    def put(ops: CustomOps) -> CustomOps:
        monkeypatch.setitem(sys.modules, "vllm._custom_ops", ops)  # type: ignore[arg-type]
        monkeypatch.setitem(sys.modules, ROCM, Shuffled(ROCM))
        return ops

    return put


def findings(monkeypatch: pytest.MonkeyPatch, spec: KernelSpec, kv: str, layers: int) -> set[str]:
    """The oracles that find something in a kernel of vLLM on a CPU."""
    torch.set_num_threads(1)
    monkeypatch.setattr(kernel_target, "find_kernel", lambda op, name: spec)
    shape: dict[str, Any] = (
        {"num_tokens": 70, "num_padded": 2}
        if spec.op == "write_records"
        else {"seq_lens": [5, 0, 64, 64]}
    )
    params = {"kernel": spec.short_name, "kv": kv, "layers": layers, **shape}
    case = Case(id="c", scenario="s", system="kernel", op=spec.op, params=params, seed=5)
    evidence = Evidence(
        case,
        [KernelTarget(case).run(Poison(p, frozenset(SITES.names()))) for p in ("nan", "zeros")],
    )
    assert all(run.error is None for run in evidence.runs), evidence.runs[0].error
    names = ("finite", "sentinel", "reference", "non_interference")
    return {name for name in names if ORACLES.get(name).judge(evidence).findings}


PAIRS = [
    (spec, kv)
    for spec in KERNELS
    if spec.origin == "vllm" and spec.op in ("write_records", "read_records")
    for kv in spec.kv
]


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(("spec", "kv"), PAIRS, ids=[f"{spec.name}-{kv}" for spec, kv in PAIRS])
def test_a_release_that_keeps_the_format_passes(
    vllm: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    spec: KernelSpec,
    kv: str,
    layers: int,
) -> None:
    vllm(CustomOps())
    assert not findings(monkeypatch, spec, kv, layers)


def test_the_gather_of_an_older_release_gets_the_lengths(
    vllm: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm(OlderOps())
    assert not findings(monkeypatch, KERNELS.get("read_records/vllm-ds-mla"), "fp8_ds_mla", 1)


def test_a_writer_and_a_reader_of_another_layout_are_findings(
    vllm: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm(CustomOps())
    right = write_records
    monkeypatch.setattr(
        sys.modules[__name__],
        "write_records",
        lambda x, cache, slots, *, record_format, scale=None: right(
            x, cache, slots, record_format="indexer_planar", scale=scale
        ),
    )
    spec = KERNELS.get("write_records/vllm-indexer-shuffled")
    assert {"sentinel", "reference"} <= findings(monkeypatch, spec, "indexer_shuffled", 1)


def test_the_reader_of_keys_multiplies_codes_by_their_scales(vllm: Callable[..., Any]) -> None:
    vllm(CustomOps())
    x = torch.randn(64, 128, generator=torch.Generator().manual_seed(1))
    cache = torch.zeros(2, 64, 132, dtype=torch.uint8)
    write_records(x, cache, torch.arange(64, 128), record_format="indexer_planar")
    table, starts = torch.tensor([[1]], dtype=torch.int32), torch.tensor([0, 64], dtype=torch.int32)
    out = record_kernels.read_indexer(cache, table, starts, record_format="indexer_planar")
    assert float((out - x).norm() / x.norm()) < 0.06


@pytest.mark.parametrize(("num_heads", "padded"), [(4, 64), (64, 64), (65, 128)])
def test_sparse_flashmla_gets_records_padded_heads_and_padded_indices(
    monkeypatch: pytest.MonkeyPatch, num_heads: int, padded: int
) -> None:
    seen: dict[str, Any] = {}

    def attend(
        *, q: Tensor, k_cache: Tensor, indices: Tensor, softmax_scale: float, **given: Any
    ) -> Any:
        seen.update(given, q=q, indices=indices)
        assert k_cache.shape == (3, 64, 1, 656) and k_cache.dtype == torch.uint8
        want = mla_decode_sparse_reference.expected(
            q[0], k_cache[:, :, 0], indices[0], scale=softmax_scale
        )
        return want.out[None].to(q.dtype), want.lse.T[None].float()

    flashmla = SimpleNamespace(
        flash_mla_with_kvcache=attend, get_mla_metadata=lambda: ("plan", None)
    )
    monkeypatch.setitem(sys.modules, "vllm.v1.attention.ops.flashmla", flashmla)  # type: ignore[arg-type]
    cache = encode(torch.randn(192, 576), "fp8_ds_mla").view(3, 64, 656)
    q = torch.randn(2, num_heads, 576).bfloat16()
    indices = torch.tensor([[5, 70, -1], [191, -1, -1]], dtype=torch.int32)
    out, lse = record_kernels.flashmla_sparse(q, cache, indices, scale=0.04)
    assert out.shape == (2, num_heads, 512) and lse.shape == (2, num_heads)
    assert seen["q"].shape == (1, 2, padded, 576) and seen["indices"].shape == (1, 2, 128)
    assert (
        seen["is_fp8_kvcache"]
        and seen["tile_scheduler_metadata"] == "plan"
        and seen["head_dim_v"] == 512
    )
    keys = decode(cache.view(-1, 656)[[191]], "fp8_ds_mla")
    torch.testing.assert_close(out[1, 0].double(), keys[0, :512], rtol=0.01, atol=0.01)
    assert float(lse[1, 0]) == pytest.approx(float(q[1, 0].double() @ keys[0] * 0.04), abs=1e-3)
