"""vLLM's kernels as they are declared, and what is handed to them: checked with stand-ins for vLLM's modules."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from harness.kernels import vllm_support
from harness.kernels.vllm_flash_attention import mla_decode as fa3_decode
from harness.kernels.vllm_flashmla import mla_decode_fp8, mla_decode_sparse
from harness.kernels.vllm_merge import merge_attn_states_triton
from harness.kernels.vllm_specs import VLLM_KERNELS
from harness.kernels.vllm_triton import mla_decode as triton_decode
from harness.kernels.vllm_write_kv import write_kv
from harness.ops.contracts import OPS


def module(monkeypatch: pytest.MonkeyPatch, name: str, **functions: Any) -> None:
    stand_in = ModuleType(name)
    for key, function in functions.items():
        setattr(stand_in, key, function)
    monkeypatch.setitem(sys.modules, name, stand_in)


def decode_inputs(num_tokens: int = 1) -> tuple[torch.Tensor, ...]:
    q = torch.randn(2, num_tokens, 4, 576, dtype=torch.bfloat16)
    cache = torch.randn(5, 64, 576, dtype=torch.bfloat16)
    return q, cache, torch.tensor([[1, 2], [3, 0]], dtype=torch.int32), torch.tensor([70, 0], dtype=torch.int32)


@pytest.mark.parametrize("spec", VLLM_KERNELS, ids=lambda spec: spec.name)
def test_a_kernel_of_vllm_loads_without_vllm_and_takes_its_ops_arguments(spec: Any) -> None:
    from harness.kernels.plugins import check_signature

    check_signature(OPS.get(spec.op), spec.short_name, spec.load())
    assert spec.devices == ("cuda",) and spec.origin == "vllm"


@pytest.mark.parametrize("spec", VLLM_KERNELS, ids=lambda spec: spec.name)
def test_without_vllm_or_a_gpu_every_kernel_says_why_it_is_skipped(spec: Any) -> None:
    assert spec.why_not("cpu") is not None
    if vllm_support.installed_version() is None:
        assert "vLLM is not installed" in str(spec.why_not("cuda"))


def test_blackwell_kernels_name_the_gpu_that_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_support, "installed_version", lambda: "0.22.1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert vllm_support.on_blackwell("cuda") == "built for data-center Blackwell (10.0, 10.3); this GPU is 9.0"
    assert vllm_support.on_hopper("cuda") is None
    monkeypatch.setattr(vllm_support, "installed_version", lambda: "0.19.2")
    assert "older than 0.20" in str(vllm_support.on_any("cuda"))


def test_the_fp8_query_is_quantized_with_the_scale_that_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def kernel(**given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        seen.update(given)
        return torch.zeros(2, 1, 4, 512), torch.zeros(2, 4, 1)

    module(monkeypatch, "vllm.v1.attention.ops.flashmla", flash_mla_with_kvcache_fp8=kernel)
    q, cache, table, lens = decode_inputs()
    plan = SimpleNamespace(tile_scheduler_metadata=torch.zeros(1), num_splits=torch.zeros(3))
    mla_decode_fp8(q, cache.to(torch.float8_e4m3fn), table, lens, scale=0.1, kv_scale=0.5, metadata=plan)
    assert seen["q"].dtype == torch.float8_e4m3fn and seen["descale_k"].item() == 0.5
    restored = seen["q"].float() * seen["descale_q"]
    assert float((restored - q.float()).abs().max()) < 0.2


def test_the_sparse_kernel_is_asked_for_exactly_the_slots_of_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def kernel(q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, scale: float, rank: int) -> Any:
        seen.update(q=q, kv=kv, indices=indices)
        return torch.zeros(q.shape[0], q.shape[1], 512), torch.zeros(q.shape[:2]), torch.zeros(q.shape[:2])

    module(monkeypatch, "vllm.v1.attention.ops.flashmla", flash_mla_sparse_fwd=kernel)
    q, cache, table, lens = decode_inputs(num_tokens=2)
    out, lse = mla_decode_sparse(q, cache, table, lens, scale=0.1)
    assert out.shape == (2, 2, 4, 512) and lse.shape == (2, 4, 2)
    first, second = seen["indices"][0, 0], seen["indices"][1, 0]
    assert first[first >= 0].tolist() == [*range(64, 128), *range(128, 133)]
    assert int((second >= 0).sum()) == 70
    assert int((seen["indices"][2:] >= 0).sum()) == 0


def test_fa3_gets_latent_and_rope_apart_and_rows_of_a_request_together(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def kernel(**given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        seen.update(given)
        lse = torch.arange(4.0)[:, None] * 10 + torch.arange(4.0)
        return torch.zeros(4, 4, 512), lse

    module(monkeypatch, "vllm.vllm_flash_attn", flash_attn_varlen_func=kernel)
    q, cache, table, lens = decode_inputs(num_tokens=2)
    _, lse = fa3_decode(q, cache, table, lens, scale=0.1)
    assert seen["cu_seqlens_q"].tolist() == [0, 2, 4]
    assert seen["q_v"].shape == (4, 4, 512) and seen["q"].shape == (4, 4, 64) and seen["v"].shape == (5, 64, 1, 512)
    assert lse[1, 2].tolist() == [22.0, 23.0]


def test_each_token_of_triton_decode_ends_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def kernel(q: Any, k: Any, v: Any, out: Any, lse: Any, table: Any, lens: Any, *rest: Any, **given: Any) -> None:
        seen.update(lens=lens, table=table, splits=rest[1], partial=rest[0])
        out.zero_()
        lse.zero_()

    module(monkeypatch, "vllm.v1.attention.ops.triton_decode_attention", decode_attention_fwd=kernel)
    q, cache, table, lens = decode_inputs(num_tokens=2)
    triton_decode(q, cache, table, lens, scale=0.1)
    assert seen["lens"].tolist() == [69, 70, 0, 0]
    assert seen["table"].tolist() == [[1, 2], [1, 2], [3, 0], [3, 0]]
    assert seen["partial"].shape == (4, 4, seen["splits"], 513)


def test_merge_writes_into_outputs_that_nobody_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(out: Any, p_out: Any, p_lse: Any, s_out: Any, s_lse: Any, lse: Any, count: Any) -> None:
        out.copy_(s_out)
        lse.fill_(count)

    module(monkeypatch, "vllm.v1.attention.ops.triton_merge_attn_states", merge_attn_states=kernel)
    part, lse = torch.ones(3, 2, 8), torch.ones(2, 3)
    merged, merged_lse = merge_attn_states_triton(part, lse, part * 2, lse, num_tokens_with_context=1)
    assert merged.unique().tolist() == [2.0] and merged_lse.unique().tolist() == [1.0]


@pytest.mark.parametrize(("dtype", "name"), [(torch.bfloat16, "auto"), (torch.float8_e4m3fn, "fp8_e4m3")])
def test_write_kv_names_the_type_of_the_cache(dtype: torch.dtype, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    module(monkeypatch, "vllm._custom_ops", concat_and_cache_mla=lambda *given: seen.extend(given))
    cache = torch.zeros(2, 64, 576).to(dtype)
    write_kv(torch.zeros(3, 512), torch.zeros(3, 64), cache, torch.tensor([1, 2, -1], dtype=torch.int32), kv_scale=0.5)
    assert seen[3].dtype == torch.int64 and seen[4] == name and float(seen[5]) == 0.5
    assert seen[2].data_ptr() == cache.data_ptr()
