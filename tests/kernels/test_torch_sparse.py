"""Sparse and windowed decode: right for any list and any window, and deaf to slots that nobody
listed or sees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.core.errors import IllegalAddress
from harness.core.findings import Finding
from harness.ops.mla_decode import reference as mla_decode_reference
from harness.ops.mla_decode.kernels.tiled import mla_decode
from harness.ops.mla_decode_sparse import reference as mla_decode_sparse_reference
from harness.ops.mla_decode_sparse.kernels.gather import mla_decode_sparse

Judge = Callable[..., list[Finding]]

SMALL: dict[str, Any] = {"num_heads": 3, "kv_lora_rank": 32, "qk_rope_head_dim": 16}
WINDOWED = ["tiled", "tiled-multiply", "tiled-identity", "tiled-prefetch"]


@pytest.mark.parametrize("kv", ["fp32", "bf16", "fp8_e4m3"])
@pytest.mark.parametrize("num_chosen", [(16, 0, 1, 5), (0, 3), (16, 16)])
def test_sparse_decode_is_right_for_full_short_and_empty_lists(
    judge: Judge, kv: str, num_chosen: tuple[int, ...]
) -> None:
    assert not judge("mla_decode_sparse", kernel="gather", kv=kv, num_chosen=num_chosen, **SMALL)


@settings(
    max_examples=20,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    num_chosen=st.lists(st.integers(0, 70), min_size=1, max_size=6).filter(any),
    topk=st.integers(70, 90),
)
def test_sparse_decode_is_right_for_any_counts(
    judge: Judge, num_chosen: list[int], topk: int
) -> None:
    assert not judge(
        "mla_decode_sparse", kernel="gather", num_chosen=num_chosen, topk=topk, **SMALL
    )


def test_a_slot_past_the_pool_is_an_illegal_address() -> None:
    q, cache = torch.zeros(1, 2, 48), torch.zeros(2, 64, 48)
    with pytest.raises(IllegalAddress, match="indices: index 128"):
        mla_decode_sparse(q, cache, torch.tensor([[128]], dtype=torch.int32), scale=1.0)


def test_all_slots_of_a_request_in_a_list_give_what_paged_decode_gives() -> None:
    generator = torch.Generator().manual_seed(0)
    q, cache = (
        torch.randn(1, 2, 48, generator=generator),
        torch.randn(4, 64, 48, generator=generator),
    )
    table, length = torch.tensor([[2, 1]], dtype=torch.int32), 70
    slots = [int(table[0, p // 64]) * 64 + p % 64 for p in range(length)]
    out, lse = mla_decode_sparse(q, cache, torch.tensor([slots], dtype=torch.int32), scale=0.1)
    paged, paged_lse = mla_decode(
        q[:, None], cache, table, torch.tensor([length], dtype=torch.int32), scale=0.1
    )
    torch.testing.assert_close(out, paged[:, 0])
    torch.testing.assert_close(lse, paged_lse[..., 0])


@pytest.mark.parametrize("kernel", WINDOWED)
@pytest.mark.parametrize("window", [1, 2, 63, 64, 65, 500])
def test_a_window_is_right_at_the_edges_of_pages(judge: Judge, kernel: str, window: int) -> None:
    lengths = [1, 63, 64, 0, 65, 130]
    assert not judge(
        "mla_decode", kernel=kernel, kv="fp32", seq_lens=lengths, window=window, **SMALL
    )


@pytest.mark.parametrize("kernel", WINDOWED)
def test_each_query_token_has_a_window_of_its_own(judge: Judge, kernel: str) -> None:
    lengths = [3, 66, 130]
    assert not judge(
        "mla_decode", kernel=kernel, kv="fp32", seq_lens=lengths, query_len=3, window=5, **SMALL
    )


def test_pages_before_the_window_may_hold_anything_for_a_kernel_that_selects() -> None:
    generator = torch.Generator().manual_seed(0)
    q, cache = (
        torch.randn(1, 1, 2, 48, generator=generator),
        torch.randn(4, 64, 48, generator=generator),
    )
    table, lengths = (
        torch.tensor([[2, 1]], dtype=torch.int32),
        torch.tensor([70], dtype=torch.int32),
    )
    before = mla_decode(q, cache, table, lengths, scale=0.1, window=4)
    cache[2] = torch.nan
    after = mla_decode(q, cache, table, lengths, scale=0.1, window=4)
    assert torch.equal(before[0], after[0]) and torch.equal(before[1], after[1])


def test_the_reference_of_a_window_is_that_of_the_keys_in_it() -> None:
    generator = torch.Generator().manual_seed(0)
    q, cache = (
        torch.randn(1, 1, 2, 48, generator=generator),
        torch.randn(3, 64, 48, generator=generator),
    )
    table, lengths = (
        torch.tensor([[1, 2]], dtype=torch.int32),
        torch.tensor([70], dtype=torch.int32),
    )
    want = mla_decode_reference.expected(q, cache, table, lengths, scale=0.1, window=4)
    slots = torch.tensor([[2 * 64 + offset for offset in range(2, 6)]], dtype=torch.int32)
    assert torch.equal(
        want.out, mla_decode_sparse_reference.expected(q[:, 0], cache, slots, scale=0.1).out
    )
