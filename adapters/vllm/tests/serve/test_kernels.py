"""vLLM's kernels as they are declared, and what is handed to them: checked with stand-ins for
vLLM's modules.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from harness.core.cause_codes import Code
from harness.core.ops import OPS
from mla_harness_adapters import base
from mla_harness_vllm import kernels as vllm_kernels
from mla_harness_vllm.kernels import (
    fa3_decode,
    flashmla_decode_fp8,
    flashmla_decode_sparse,
    merge_attn_states_triton,
    triton_decode,
    write_kv,
)
from mla_harness_vllm.tables import ENGINE, KERNELS
from tests.transcripts import Approved


def module(monkeypatch: pytest.MonkeyPatch, name: str, **functions: Any) -> None:
    stand_in = ModuleType(name)
    for key, function in functions.items():
        setattr(stand_in, key, function)
    monkeypatch.setitem(sys.modules, name, stand_in)


def decode_inputs(num_tokens: int = 1) -> tuple[torch.Tensor, ...]:
    q = torch.randn(2, num_tokens, 4, 576, dtype=torch.bfloat16)
    cache = torch.randn(5, 64, 576, dtype=torch.bfloat16)
    return (
        q,
        cache,
        torch.tensor([[1, 2], [3, 0]], dtype=torch.int32),
        torch.tensor([70, 0], dtype=torch.int32),
    )


@pytest.mark.parametrize("spec", KERNELS, ids=lambda spec: spec.name)
def test_a_kernel_of_vllm_loads_without_vllm_and_takes_its_ops_arguments(spec: Any) -> None:
    from harness.kernels.plugins import check_signature

    check_signature(OPS.get(spec.op), spec.short_name, spec.load())
    device = "cpu" if spec.short_name.startswith("vllm-cpu") else "cuda"
    assert spec.devices == (device,) and spec.origin == "vllm"


@pytest.mark.parametrize("spec", KERNELS, ids=lambda spec: spec.name)
def test_without_vllm_or_a_gpu_every_kernel_says_why_it_is_skipped(spec: Any) -> None:
    assert spec.why_not("cpu")
    if base.installed_version(ENGINE) is None:
        assert spec.why_not(spec.devices[0]).cause == Code.NOT_INSTALLED


def test_blackwell_kernels_name_the_gpu_that_they_lack(
    monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setattr(base, "installed_version", lambda engine: "0.22.1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    lacks = vllm_kernels.on_blackwell("cuda")
    assert lacks.cause == Code.NO_DEVICE
    assert vllm_kernels.on_hopper("cuda") is None
    monkeypatch.setattr(base, "installed_version", lambda engine: "0.19.2")
    approved([str(lacks), str(vllm_kernels.on_any("cuda"))])


def test_the_fp8_query_is_quantized_with_the_scale_that_is_handed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: dict[str, Any] = {}

    def kernel(**given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        seen.update(given)
        return torch.zeros(2, 1, 4, 512), torch.zeros(2, 4, 1)

    module(monkeypatch, "vllm.v1.attention.ops.flashmla", flash_mla_with_kvcache_fp8=kernel)
    q, cache, table, lens = decode_inputs()
    plan = SimpleNamespace(tile_scheduler_metadata=torch.zeros(1), num_splits=torch.zeros(3))
    flashmla_decode_fp8(
        q, cache.to(torch.float8_e4m3fn), table, lens, scale=0.1, kv_scale=0.5, metadata=plan
    )
    assert seen["q"].dtype == torch.float8_e4m3fn and seen["descale_k"].item() == 0.5
    restored = seen["q"].float() * seen["descale_q"]
    assert float((restored - q.float()).abs().max()) < 0.2


def test_the_sparse_kernel_is_asked_for_exactly_the_slots_of_each_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: dict[str, Any] = {}

    def kernel(
        q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, sm_scale: float, d_v: int
    ) -> Any:
        seen.update(q=q, kv=kv, indices=indices)
        return (
            torch.zeros(q.shape[0], q.shape[1], 512),
            torch.zeros(q.shape[:2]),
            torch.zeros(q.shape[:2]),
        )

    module(monkeypatch, "vllm.v1.attention.ops.flashmla", flash_mla_sparse_fwd=kernel)
    q, cache, table, lens = decode_inputs(num_tokens=2)
    out, lse = flashmla_decode_sparse(q, cache, table, lens, scale=0.1)
    assert out.shape == (2, 2, 4, 512) and lse.shape == (2, 4, 2)
    first, second = seen["indices"][0, 0], seen["indices"][1, 0]
    assert first[first >= 0].tolist() == [*range(64, 128), *range(128, 133)]
    assert int((second >= 0).sum()) == 70
    assert int((seen["indices"][2:] >= 0).sum()) == 0


def test_fa3_gets_latent_and_rope_apart_and_rows_of_a_request_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: dict[str, Any] = {}

    def kernel(**given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        seen.update(given)
        lse = torch.arange(4.0)[:, None] * 10 + torch.arange(4.0)
        return torch.zeros(4, 4, 512), lse

    module(monkeypatch, "vllm.vllm_flash_attn", flash_attn_varlen_func=kernel)
    q, cache, table, lens = decode_inputs(num_tokens=2)
    _, lse = fa3_decode(q, cache, table, lens, scale=0.1)
    assert seen["cu_seqlens_q"].tolist() == [0, 2, 4]
    assert (
        seen["q_v"].shape == (4, 4, 512)
        and seen["q"].shape == (4, 4, 64)
        and seen["v"].shape == (5, 64, 1, 512)
    )
    assert lse[1, 2].tolist() == [22.0, 23.0]


def test_each_token_of_triton_decode_ends_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def kernel(o: torch.Tensor, lse: torch.Tensor, **given: Any) -> None:
        seen.update(lens=given["b_seq_len"], table=given["req_to_token"])
        seen.update(splits=given["num_kv_splits"], partial=given["attn_logits"])
        o.zero_()
        lse.zero_()

    module(
        monkeypatch, "vllm.v1.attention.ops.triton_decode_attention", decode_attention_fwd=kernel
    )
    q, cache, table, lens = decode_inputs(num_tokens=2)
    triton_decode(q, cache, table, lens, scale=0.1)
    assert seen["lens"].tolist() == [69, 70, 0, 0]
    assert seen["table"].tolist() == [[1, 2], [1, 2], [3, 0], [3, 0]]
    assert seen["partial"].shape == (4, 4, seen["splits"], 513)


def test_merge_writes_into_outputs_that_nobody_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(
        output: Any, suffix_output: Any, output_lse: Any, prefill_tokens_with_context: Any, **_: Any
    ) -> None:
        output.copy_(suffix_output)
        output_lse.fill_(prefill_tokens_with_context)

    module(monkeypatch, "vllm.v1.attention.ops.triton_merge_attn_states", merge_attn_states=kernel)
    part, lse = torch.ones(3, 2, 8), torch.ones(2, 3)
    merged, merged_lse = merge_attn_states_triton(
        part, lse, part * 2, lse, num_tokens_with_context=1
    )
    assert merged.unique().tolist() == [2.0] and merged_lse.unique().tolist() == [1.0]


@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.bfloat16, "auto"), (torch.float8_e4m3fn, "fp8_e4m3")]
)
def test_write_kv_names_the_type_of_the_cache(
    dtype: torch.dtype, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    module(monkeypatch, "vllm._custom_ops", concat_and_cache_mla=lambda **given: seen.update(given))
    cache = torch.zeros(2, 64, 576).to(dtype)
    write_kv(
        torch.zeros(3, 512),
        torch.zeros(3, 64),
        cache,
        torch.tensor([1, 2, -1], dtype=torch.int32),
        kv_scale=0.5,
    )
    assert seen["slot_mapping"].dtype == torch.int64 and seen["kv_cache_dtype"] == name
    assert float(seen["scale"]) == 0.5 and seen["kv_cache"].data_ptr() == cache.data_ptr()


def test_cutlass_plans_its_workspace_for_the_splits_that_it_runs_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: dict[str, Any] = {}

    def size(max_seq_len: int, num_batches: int, sm_count: int, num_kv_splits: int) -> int:
        seen.update(planned=num_kv_splits, longest=max_seq_len)
        return 16

    module(
        monkeypatch,
        "vllm._custom_ops",
        sm100_cutlass_mla_get_workspace_size=size,
        sm100_cutlass_mla_decode=lambda **given: seen.update(given),
    )
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda device: SimpleNamespace(multi_processor_count=148),
    )
    q, cache, table, lens = decode_inputs()
    out, lse = vllm_kernels.cutlass_mla_decode(q, cache, table, lens, scale=0.1)
    assert out.shape == (2, 1, 4, 512) and lse.shape == (2, 4, 1)
    assert (
        seen["num_kv_splits"] == seen["planned"]
        and seen["longest"] == 128
        and seen["workspace"].numel() == 16
    )


@pytest.mark.parametrize(("converts", "expected"), [(False, 2.0), (True, 1.0)])
def test_the_ragged_kernels_log_sum_exp_is_taken_as_this_vllm_takes_it(
    converts: bool, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kernel(out: torch.Tensor, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return out.zero_(), torch.full((3, 2), 2.0)

    module(monkeypatch, "flashinfer.prefill", trtllm_ragged_attention_deepseek=kernel)
    module(
        monkeypatch,
        "vllm.v1.attention.backends.utils",
        **({"log2_lse_to_ln": lambda lse: lse / 2} if converts else {}),
    )
    starts = torch.tensor([0, 3], dtype=torch.int32)
    _, lse = vllm_kernels.trtllm_ragged_context_attention(
        torch.zeros(3, 2, 192),
        torch.zeros(5, 2, 192),
        torch.zeros(5, 2, 128),
        starts,
        torch.tensor([0, 5]),
        scale=0.1,
    )
    assert lse.shape == (2, 3) and lse.unique().tolist() == [expected]
