"""SGLang's kernels as they are declared, and what is handed to them: checked with stand-ins for its
modules.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType
from typing import Any, cast

import pytest
import torch
from torch_poison.patterns import Poison

from harness.core.cases import Case
from harness.core.catalog import ORACLES, SITES
from harness.core.op_params import KERNEL_PARAMS
from harness.core.ops import OPS
from harness.engine.kernels import ActivationQuantizer
from harness.evidence.records import Evidence
from harness.judge.targets.kernel import KernelTarget
from harness.kernels.plugins import check_signature
from harness.ops.align_experts import reference as align_experts_reference
from harness.ops.mla_decode import reference as mla_decode_reference
from mla_harness_sglang import kernels, releases
from mla_harness_sglang.tables import KERNELS


def module(monkeypatch: pytest.MonkeyPatch, name: str, **functions: Any) -> None:
    stand_in = ModuleType(name)
    for key, function in functions.items():
        setattr(stand_in, key, function)
    monkeypatch.setitem(sys.modules, name, stand_in)


@pytest.mark.parametrize("spec", KERNELS, ids=lambda spec: spec.name)
def test_a_kernel_loads_without_sglang_takes_its_ops_arguments_and_says_why_it_is_skipped(
    spec: Any,
) -> None:
    check_signature(OPS.get(spec.op), spec.short_name, spec.load())
    assert spec.devices == ("cuda",) and spec.origin == "sglang"
    assert spec.why_not("cpu")


def test_slots_of_each_request_are_one_ragged_list() -> None:
    starts, slots = kernels.ragged_slots(torch.tensor([[1, 2], [3, 9]]), torch.tensor([5, 2]), 4)
    assert starts.tolist() == [0, 5, 7]
    assert slots[:7].tolist() == [4, 5, 6, 7, 8, 12, 13]


def test_the_decode_gets_slots_of_each_query_token_and_its_splits_are_merged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def decode(
        q: Any,
        k: Any,
        v: Any,
        o: Any,
        starts: Any,
        slots: Any,
        logits: Any,
        lse: Any,
        splits: Any,
        most: int,
        scale: float,
        k_scale: float,
        v_scale: float,
        has_mla: bool,
    ) -> None:
        # A scale beside a cache of floats scales nothing.
        assert (most, has_mla, k_scale, logits.shape[2]) == (8, True, 1.0, 8)
        lse.fill_(float("nan"))
        for row in range(len(q)):
            keys = k[slots[starts[row] : starts[row + 1]], 0].float()
            scores = q[row].float() @ keys.T * scale
            o[row] = (scores.softmax(-1) @ keys[:, :512]).to(o.dtype)
            lse[row, :, 0] = scores[:, :32].logsumexp(-1)
            if keys.shape[0] > 32:
                lse[row, :, 1] = scores[:, 32:].logsumexp(-1)

    module(
        monkeypatch,
        releases.DECODE_ATTENTION.names[0],
        decode_attention_fwd=decode,
    )
    q, cache = torch.randn(1, 2, 4, 576), torch.randn(3, 32, 576)
    table, lens = torch.tensor([[2, 1]], dtype=torch.int32), torch.tensor([40], dtype=torch.int32)
    out, lse = kernels.triton_decode(q, cache, table, lens, scale=0.1, kv_scale=0.5)
    keys = cache[[2, 1]].reshape(-1, 576)
    for token, length in enumerate((39, 40)):
        scores = q[0, token] @ keys[:length].T * 0.1
        assert torch.allclose(lse[0, :, token], scores.logsumexp(-1), atol=1e-4)
        assert torch.allclose(out[0, token], scores.softmax(-1) @ keys[:length, :512], atol=1e-4)


def test_the_merge_has_the_lse_transposed_and_copies_tokens_past_the_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def merge(a: Any, lse_a: Any, b: Any, lse_b: Any, *_: Any) -> Any:
        weight = torch.sigmoid(lse_a - lse_b)[..., None]
        return weight * a + (1 - weight) * b, torch.logaddexp(lse_a, lse_b)

    module(monkeypatch, "sgl_kernel", merge_state_v2=merge)
    a, b, lse_a, lse_b = (
        torch.randn(3, 2, 8),
        torch.randn(3, 2, 8),
        torch.randn(2, 3),
        torch.randn(2, 3),
    )
    out, lse = kernels.merge_state(a, lse_a, b, lse_b, num_tokens_with_context=2)
    assert torch.equal(out[2], b[2]) and torch.equal(lse[:, 2], lse_b[:, 2])
    assert torch.allclose(lse[:, :2], torch.logaddexp(lse_a, lse_b)[:, :2])


def test_a_writer_gets_only_rows_with_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(buffer: Any, loc: Any, nope: Any, rope: Any) -> None:
        assert loc.min() >= 0
        buffer[loc] = torch.cat([nope, rope], -1)

    module(monkeypatch, "sglang.srt.mem_cache.memory_pool", set_mla_kv_buffer_triton=write)
    cache = torch.zeros(2, 64, 576)
    kernels.write_kv(torch.ones(2, 512), torch.ones(2, 64), cache, torch.tensor([70, -1]))
    assert cache[1, 6].eq(1).all() and cache.sum() == 576


def test_a_quantizer_sees_live_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def quantize(x: torch.Tensor) -> Any:
        scale = x.abs().max().float() / 448
        return (x / scale).to(torch.float8_e4m3fn), scale

    module(monkeypatch, releases.FP8_KERNELS.names[0], scaled_fp8_quant=quantize)
    x = torch.tensor([[448.0], [float("nan")]])
    assert kernels.quantize_fp8(x, num_live=1)[1].tolist() == [1.0]


def findings(monkeypatch: pytest.MonkeyPatch, op: str, name: str, **params: Any) -> set[str]:
    """The oracles that fire on a kernel of the table, run on a CPU with stand-ins under NaN and
    zeros.
    """
    (spec,) = [
        replace(one, devices=("cpu",), requires="")
        for one in KERNELS
        if (one.op, one.short_name) == (op, name)
    ]
    monkeypatch.setattr("harness.judge.targets.kernel.find_kernel", lambda *_: spec)
    case = Case(
        id="x",
        scenario="x",
        system="kernel",
        op=op,
        params=KERNEL_PARAMS[op].model_validate(params),
    )
    target, sites = KernelTarget(case), frozenset(SITES.names())
    evidence = Evidence(case, [target.run(Poison(pattern, sites)) for pattern in ("nan", "zeros")])
    assert [run.error for run in evidence.runs] == [None, None]
    names = ("finite", "sentinel", "reference", "non_interference")
    return {name for name in names if ORACLES.get(name).judge(evidence).findings}


@pytest.mark.parametrize("is_right", [True, False])
def test_cutlass_gets_whole_pages_of_128_and_its_missing_lse_is_not_judged(
    is_right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def size(max_seq_len: int, num_batches: int, sm_count: int = 0, num_kv_splits: int = 1) -> int:
        assert max_seq_len % 128 == 0 and (num_batches, sm_count, num_kv_splits) == (2, 0, 1)
        return 16

    def decode(
        q_nope: Any,
        q_pe: Any,
        kv_c_and_k_pe_cache: Any,
        seq_lens: Any,
        page_table: Any,
        workspace: Any,
        sm_scale: float,
        num_kv_splits: int = 1,
    ) -> Any:
        assert (q_nope.shape[2], q_pe.shape[2], page_table.shape[1] % 2) == (512, 64, 0)
        assert (workspace.dtype, seq_lens.dtype, page_table.dtype) == (
            torch.uint8,
            torch.int32,
            torch.int32,
        )
        q, lens = torch.cat([q_nope, q_pe], -1)[:, None], seq_lens if is_right else seq_lens - 1
        return mla_decode_reference.expected(
            q, kv_c_and_k_pe_cache, page_table, lens, scale=sm_scale
        ).out.to(q.dtype)

    module(
        monkeypatch, "sgl_kernel", cutlass_mla_decode=decode, cutlass_mla_get_workspace_size=size
    )
    found = findings(
        monkeypatch, "mla_decode", "sglang-cutlass", seq_lens=(5, 130), table_pad=0, num_heads=2
    )
    assert found == (set() if is_right else {"reference"})


@pytest.mark.parametrize("is_right", [True, False])
@pytest.mark.parametrize("name", ["sglang-per-token", "sglang-per-block"])
def test_quantizers_of_rows_and_blocks_keep_padding_apart(
    name: str, is_right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blocks(
        x: torch.Tensor, group_size: int, eps: float = 1e-10
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert x.is_contiguous() and x.shape[-1] % group_size == 0
        parts = x.float().unflatten(1, (-1, group_size))
        amax = (
            parts.abs().amax(dim=2, keepdim=True)
            if is_right
            else parts.abs().amax().expand(*parts.shape[:2], 1)
        )
        scale = amax.clamp(min=eps) / 448
        values = torch.empty_like(x, dtype=torch.float8_e4m3fn)
        values.copy_((parts / scale).flatten(1))
        return values, scale[..., 0].contiguous()

    def rows(
        x: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return blocks(x, x.shape[1])

    module(
        monkeypatch,
        releases.FP8_KERNELS.names[0],
        sglang_per_token_quant_fp8=rows,
        sglang_per_token_group_quant_fp8=blocks,
    )
    if is_right:
        x, kernel = (
            torch.randn(3, 384),
            kernels.quantize_rows if "token" in name else kernels.quantize_row_blocks,
        )
        rounded = ActivationQuantizer(
            cast(Any, kernel), Poison("nan", frozenset()), whole_batch=True
        )(x, cast(Any, None))
        assert torch.allclose(rounded, x, rtol=0.07, atol=0.02), "the engine scales each block back"
    found = findings(monkeypatch, "quantize_fp8", name, num_tokens=6, num_live=4, width=384)
    assert found == (set() if is_right else {"finite", "reference", "non_interference"})


@pytest.mark.parametrize("is_right", [True, False])
def test_choices_are_sorted_by_sglangs_own_function_whose_buffers_are_longer(
    is_right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def align(topk_ids: Any, block_size: int, num_experts: int) -> Any:
        want = align_experts_reference.expected(
            topk_ids, num_experts=num_experts, block_size=block_size
        )
        size = topk_ids.numel() + (num_experts + 1) * (block_size - 1)
        ids, experts = (
            torch.full((length,), 7, dtype=torch.int32) for length in (size, -(-size // block_size))
        )
        filled = (
            want.sorted_ids < topk_ids.numel()
            if not is_right
            else torch.ones_like(want.sorted_ids, dtype=torch.bool)
        )
        # In a run any order is right.
        runs = torch.where(filled, want.sorted_ids, 7).view(-1, block_size).flip(1).flatten()
        ids[: len(runs)], experts[: len(want.expert_ids)] = runs, want.expert_ids
        return ids, experts, torch.tensor([len(runs)], dtype=torch.int32)

    name = "sglang.srt.layers.moe.moe_runner.triton_utils.moe_align_block_size"
    module(monkeypatch, name, moe_align_block_size=align)
    found = findings(monkeypatch, "align_experts", "sglang", num_tokens=33, block_size=16)
    assert found == (set() if is_right else {"reference"})
