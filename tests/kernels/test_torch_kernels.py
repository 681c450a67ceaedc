"""Every built-in kernel keeps its contract under every poison it declares to tolerate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.core.catalog import KERNELS
from harness.core.findings import Finding
from harness.core.kernels import BUILT_IN
from harness.ops.context_attention import inputs as context_attention_inputs
from harness.ops.context_attention import reference as context_attention_reference
from harness.ops.context_attention.kernels.dense import context_attention
from harness.ops.context_attention.params import ContextAttentionParams

Judge = Callable[..., list[Finding]]

DECODE = [
    spec.short_name
    for spec in KERNELS
    if spec.op == "mla_decode"
    and spec.origin == BUILT_IN
    and "cpu" in spec.devices
    # Triton's interpreter is slow; `test_triton.py` has its kernels.
    and not spec.short_name.startswith("triton")
]
"""The kernels of the harness in torch, from their table: a new one is tried here too."""
SMALL: dict[str, Any] = {"num_heads": 3, "kv_lora_rank": 32, "qk_rope_head_dim": 16}


@pytest.mark.parametrize("kv", ["fp32", "bf16", "fp8_e4m3"])
@pytest.mark.parametrize("kernel", DECODE)
def test_decode_is_right_at_the_edges_of_pages_with_empty_rows_between(
    judge: Judge, kernel: str, kv: str
) -> None:
    assert not judge(
        "mla_decode", kernel=kernel, kv=kv, seq_lens=[0, 1, 63, 64, 0, 65, 130], num_heads=4
    )


@pytest.mark.parametrize("kernel", DECODE)
@pytest.mark.parametrize("planned", [True, False])
def test_decode_is_right_when_long_requests_are_split(
    judge: Judge, kernel: str, planned: bool
) -> None:
    lengths = [1, 64 * 9 + 1, 300, 0, 1000]
    assert not judge("mla_decode", kernel=kernel, seq_lens=lengths, planned=planned, **SMALL)


@pytest.mark.parametrize("query_len", [2, 5])
@pytest.mark.parametrize("kernel", DECODE)
def test_decode_is_causal_over_the_last_query_tokens(
    judge: Judge, kernel: str, query_len: int
) -> None:
    lengths = [query_len, query_len + 1, 64, 66, 130, 0]
    assert not judge(
        "mla_decode", kernel=kernel, kv="fp32", seq_lens=lengths, query_len=query_len, **SMALL
    )


def test_decode_takes_queries_that_are_not_contiguous(judge: Judge) -> None:
    assert not judge("mla_decode", contiguous_q=False, query_len=2, seq_lens=[70, 5], **SMALL)


@pytest.mark.parametrize("kernel", ["tiled", "tiled-multiply", "tiled-identity"])
def test_decode_dereferences_no_padded_table_entry(judge: Judge, kernel: str) -> None:
    assert not judge("mla_decode", kernel=kernel, strict=True, seq_lens=[0, 5, 64, 65], **SMALL)


@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    lengths=st.lists(
        st.integers(0, 300) | st.sampled_from([63, 64, 65, 128]), min_size=1, max_size=6
    ).filter(any),
    kernel=st.sampled_from(DECODE),
    kv=st.sampled_from(["fp32", "bf16", "fp8_e4m3"]),
)
def test_decode_is_right_for_any_lengths(
    judge: Judge, lengths: list[int], kernel: str, kv: str
) -> None:
    assert not judge("mla_decode", kernel=kernel, kv=kv, seq_lens=lengths, **SMALL)


@pytest.mark.parametrize("kernel", ["torch", "torch-plus-inf", "torch-unmarked"])
@pytest.mark.parametrize("context_lens", [[70, 17, 0], [0, 0, 200], [0, 1, 0]])
def test_context_attention_is_right_and_declares_its_empty_rows(
    judge: Judge, kernel: str, context_lens: list[int]
) -> None:
    assert not judge(
        "context_attention", kernel=kernel, query_lens=[5, 3, 4], context_lens=context_lens
    )


def test_context_attention_allows_a_request_without_new_tokens() -> None:
    # A case refuses such a request; the op does not.
    params = ContextAttentionParams(num_heads=2, qk_head_dim=24, v_head_dim=16)
    given = context_attention_inputs.draw(
        params.model_copy(update={"query_lens": (0, 3), "context_lens": (4, 9)}), 11
    )
    call = given.q, given.k, given.v, given.query_start_loc, given.chunk_start_loc
    out, lse = context_attention(*call, scale=given.scale)
    want = context_attention_reference.expected(*call, scale=given.scale)
    torch.testing.assert_close(out.double(), want.out, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(lse.double(), want.lse, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("empty_lse", ["-inf", "+inf"])
@pytest.mark.parametrize(
    ("with_context", "empty"), [(0, 0), (7, 0), (7, 3), (7, 7), (12, 0), (12, 12)]
)
def test_merge_reads_neither_rows_without_context_nor_empty_ones(
    judge: Judge, empty_lse: str, with_context: int, empty: int
) -> None:
    params = {"num_with_context": with_context, "empty_prefix_rows": empty, "empty_lse": empty_lse}
    assert not judge("merge_attn_states", num_tokens=12, **params)


@pytest.mark.parametrize("kv", ["fp32", "bf16", "fp8_e4m3"])
@pytest.mark.parametrize(("tokens", "padded"), [(9, 3), (1, 0), (150, 20)])
def test_write_kv_writes_its_slots_and_nothing_else(
    judge: Judge, kv: str, tokens: int, padded: int
) -> None:
    assert not judge("write_kv", kv=kv, num_tokens=tokens, num_padded=padded)


@pytest.mark.parametrize("kernel", ["torch", "torch-fmax", "per-token"])
@pytest.mark.parametrize(("tokens", "live"), [(8, 5), (8, 8), (1, 1), (40, 1)])
def test_quantize_is_not_moved_by_padded_rows(
    judge: Judge, kernel: str, tokens: int, live: int
) -> None:
    assert not judge("quantize_fp8", kernel=kernel, num_tokens=tokens, num_live=live)


@pytest.mark.parametrize(("experts", "chosen"), [(16, 4), (1, 1), (5, 5), (64, 8)])
def test_route_chooses_the_largest_experts(judge: Judge, experts: int, chosen: int) -> None:
    assert not judge("route_experts", num_experts=experts, num_experts_per_tok=chosen)
