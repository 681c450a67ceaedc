"""LMDeploy's kernels as they are declared, and what they are handed: checked with stand-ins for its
modules.
"""

from __future__ import annotations

import enum
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.core.cause_codes import Code
from harness.core.errors import Refused
from harness.core.ops import OPS
from harness.kernels.plugins import check_signature
from harness.ops.mla_decode import reference as mla_decode_reference
from mla_harness_lmdeploy import attention, indexer
from mla_harness_lmdeploy.tables import KERNELS
from tests.transcripts import Approved

POLICY = enum.Enum("QuantPolicy", ["NONE", "FP8"])


@pytest.fixture
def lmdeploy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put functions in place of LMDeploy's kernels: `lmdeploy("ds_index", fp8_index=function)`."""

    def stand_in(module: str, **members: Any) -> None:
        found = ModuleType(module)
        found.__dict__.update(members)
        monkeypatch.setitem(sys.modules, f"lmdeploy.pytorch.kernels.cuda.{module}", found)

    messages = ModuleType("lmdeploy.messages")
    messages.QuantPolicy = POLICY  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lmdeploy.messages", messages)
    return stand_in


@pytest.mark.parametrize("spec", KERNELS, ids=lambda spec: spec.name)
def test_it_loads_without_lmdeploy_takes_the_ops_arguments_and_says_why_it_is_skipped(
    spec: Any,
) -> None:
    check_signature(OPS.get(spec.op), spec.short_name, spec.load())
    assert spec.why_not("cpu").cause == Code.NO_DEVICE


def test_what_is_lacking_is_named(monkeypatch: pytest.MonkeyPatch, approved: Approved) -> None:
    there = {"lmdeploy": SimpleNamespace(origin="lmdeploy.py")}
    monkeypatch.setattr(attention.importlib.util, "find_spec", there.get)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert attention.on_ampere("cuda") is None
    no_tilelang = attention.on_ampere_with_tilelang("cuda")
    assert no_tilelang is not None and no_tilelang.cause == Code.NOT_INSTALLED
    there["tilelang"] = SimpleNamespace(origin="tilelang.py")
    assert attention.on_ampere_with_tilelang("cuda") is None
    there.clear()
    nothing = attention.on_ampere_with_tilelang("cuda")
    assert nothing is not None and nothing.cause == Code.NOT_INSTALLED
    approved([str(no_tilelang), str(nothing)])


@pytest.mark.parametrize("kv_scale", [None, 0.5])
def test_decode_is_handed_the_latent_as_key_and_value_with_one_scale(
    lmdeploy: Any, kv_scale: float | None
) -> None:
    def attend(q: Tensor, keys: Tensor, values: Tensor, **given: Any) -> Tensor:
        assert values.data_ptr() == keys.data_ptr() and values.shape[-1] == 512
        factor = given["k_scales_zeros"]
        assert given["v_scales_zeros"] is factor and given["quant_policy"] is POLICY.FP8
        return mla_decode_reference.expected(
            q[:, None],
            keys[:, :, 0].float() * float(factor),
            given["page_table"],
            given["cache_seqlens"],
            scale=given["softmax_scale"],
        ).out

    lmdeploy("pagedattention", flash_attn_with_kvcache=attend)
    q = torch.randn(2, 1, 4, 576)
    cache = torch.randn(4, 32, 576).to(torch.float8_e4m3fn)
    table = torch.tensor([[1, 2], [3, 0]], dtype=torch.int32)
    lens = torch.tensor([40, 7], dtype=torch.int32)
    out = attention.decode(q, cache, table, lens, scale=0.1, kv_scale=kv_scale)
    latents = cache.float() * (kv_scale or 1.0)
    want = mla_decode_reference.expected(q, latents, table, lens, scale=0.1).out
    torch.testing.assert_close(out.flatten(0, 1).double(), want.double(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("num_tokens", [1, 3])
def test_the_sparse_kernel_is_asked_for_every_token_that_a_query_sees(
    lmdeploy: Any, num_tokens: int
) -> None:
    asked: list[Tensor] = []

    def attend(q: Tensor, latents: Tensor, indices: Tensor, scale: float) -> Tensor:
        assert latents.shape[1:] == (1, 576) and indices.shape[2] % attention.INDEX_BLOCK == 0
        asked.extend(indices[:, 0])
        return q[..., :512]

    lmdeploy("tilelang_sparse_mla", tilelang_sparse_mla_forward=attend)
    q = torch.randn(2, num_tokens, 4, 576)
    table = torch.tensor([[5, 2], [3, 0]], dtype=torch.int32)
    lens = torch.tensor([70, 7], dtype=torch.int32)
    attention.sparse_decode(q, torch.randn(6, 64, 576), table, lens, scale=0.1)
    for row, slots in enumerate(asked):
        request, token = divmod(row, num_tokens)
        seen = int(lens[request]) - num_tokens + 1 + token
        pages = table[request].tolist()
        want = [pages[place // 64] * 64 + place % 64 for place in range(seen)]
        assert [slot for slot in slots.tolist() if slot >= 0] == want


def test_heads_that_the_sparse_kernel_has_no_blocks_for_are_refused(approved: Approved) -> None:
    few = torch.zeros(1, dtype=torch.int32)
    with approved.raises(Refused):
        attention.sparse_decode(
            torch.zeros(1, 1, 72, 576), torch.zeros(1, 64, 576), few[None], few, scale=1.0
        )


def test_each_token_is_written_as_a_request_that_decodes_and_negative_slots_are_none(
    lmdeploy: Any,
) -> None:
    def fill(
        states: Tensor, values: Tensor, caches: Tensor, value_caches: Tensor, **given: Any
    ) -> None:
        assert values.shape[-1] == value_caches.shape[-1] == 512
        assert given["max_q_seq_length"] == 1 and given["quant_policy"] is POLICY.NONE
        for start, count, length, pages in zip(
            given["q_start_loc"].tolist(),
            given["q_seq_length"].tolist(),
            given["kv_seq_length"].tolist(),
            given["block_offsets"].tolist(),
            strict=True,
        ):
            if length:
                assert count == 1 and len(pages) == 1
                caches[pages[0], length - 1] = states[start]

    lmdeploy("fill_kv_cache", fill_kv_cache=fill)
    kv_c, k_pe = torch.randn(4, 512), torch.randn(4, 64)
    cache = torch.zeros(3, 32, 576)
    attention.write_kv(kv_c, k_pe, cache, torch.tensor([33, -1, 0, 95]))
    want = torch.zeros(96, 576)
    want[[33, 0, 95]] = torch.cat([kv_c, k_pe], dim=1)[[0, 2, 3]]
    assert torch.equal(cache.view(96, 576), want)


def test_the_indexer_gets_the_keys_and_scales_of_a_page(lmdeploy: Any) -> None:
    def score(
        q: Tensor,
        weights: Tensor,
        codes: Tensor,
        scales: Tensor,
        starts: Tensor,
        lens: Tensor,
        table: Tensor,
        **given: Any,
    ) -> Tensor:
        assert codes.dtype == torch.float8_e4m3fn and codes.shape == (3, 64, 128)
        assert scales.dtype == torch.float32 and scales.tolist() == [[1.0] * 64] * 3
        assert starts.tolist() == [0, 2, 4] and weights.shape == (4, 16)
        assert given == {"max_q_seqlen": 2, "max_k_seqlen": 128, "causal": True}
        return torch.zeros(4, 128)

    lmdeploy("ds_index", fp8_index=score)
    cache = torch.zeros(3, 64, 132, dtype=torch.uint8)
    cache.view(3, -1)[:, 64 * 128 :].view(torch.float32)[:] = 1.0
    logits = indexer.index_logits(
        torch.zeros(2, 2, 16, 128).to(torch.float8_e4m3fn),
        torch.zeros(2, 2, 16),
        cache,
        torch.zeros(2, 2, dtype=torch.int32),
        torch.tensor([5, 100], dtype=torch.int32),
    )
    assert logits.shape == (4, 128)


@pytest.mark.parametrize("name", ["bitonic_topk", "sparse_index_topk"])
def test_a_choice_is_given_the_keys_that_each_row_sees(lmdeploy: Any, name: str) -> None:
    def select(logits: Tensor, tokens: Tensor, lengths: Tensor, k: int, **given: Any) -> Tensor:
        assert tokens.tolist() == [2, 2] and lengths.tolist() == [0, 1, 8, 9]
        assert given["fill"] == -1
        return torch.zeros(4, k, dtype=torch.int32)

    lmdeploy(name, **{name: select})
    chosen = indexer.bitonic_topk if name == "bitonic_topk" else indexer.radix_topk
    lens = torch.tensor([1, 9], dtype=torch.int32)
    assert chosen(torch.zeros(4, 16), lens, topk=64).shape == (4, 64)
