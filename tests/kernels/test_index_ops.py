"""The ops before sparse attention: right at the edges, and any right choice of a top-k is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness.core.errors import IllegalAddress
from harness.core.findings import Finding
from harness.evidence.compare import compare
from harness.evidence.thresholds import bound
from harness.ops.index_logits import inputs as index_logits_inputs
from harness.ops.index_logits import reference as index_logits_reference
from harness.ops.index_logits.kernels.dense import first_requests, load_keys
from harness.ops.index_logits.params import IndexLogitsParams
from harness.ops.map_indices.kernels.dense import map_indices
from harness.ops.select_topk.kernels.by_row import select_topk
from harness.ops.select_topk.reference import right_choice
from tests.transcripts import Approved

Judge = Callable[..., list[Finding]]


@pytest.mark.parametrize("kv", ["fp32", "bf16", "indexer_planar"])
@pytest.mark.parametrize(
    "more", [{}, {"query_len": 3, "seq_lens": [0, 2, 65]}, {"layout": "padded_pages"}]
)
def test_index_logits_are_right_for_each_type_of_cache(
    judge: Judge, kv: str, more: dict[str, Any]
) -> None:
    assert not judge("index_logits", kv=kv, num_heads=3, **more)


@pytest.mark.parametrize("query_len", [1, 3])
@pytest.mark.parametrize("values", ["plain", "plateau", "zero", "ties", "signed_zeros"])
def test_a_top_k_is_right_around_k_and_with_equal_logits(
    judge: Judge, values: str, query_len: int
) -> None:
    assert not judge("select_topk", values=[values], query_len=query_len, launches=2, topk=16)


@pytest.mark.parametrize("missing", ["last", "scattered"])
def test_positions_become_slots_of_their_own_request(judge: Judge, missing: str) -> None:
    assert not judge("map_indices", missing=missing, query_len=2, topk=9)


def test_any_set_of_the_largest_is_right_and_no_other() -> None:
    logits, lens = torch.tensor([[3.0, 0.0, 0.0, 0.0, 9.0]]), torch.tensor([4])
    for right in ([0, 1], [3, 0], [2, 0]):
        assert right_choice(logits, lens, torch.tensor([right])).tolist() == [
            sorted(right, reverse=True)
        ]
    # The largest left out; a position twice, past the length, and none though there are enough.
    for wrong in ([1, 2], [0, 0], [0, 4], [0, -1]):
        assert right_choice(logits, lens, torch.tensor([wrong])).tolist() == [[1, 0]]


def test_a_list_that_is_longer_than_the_row_must_end_in_minus_one() -> None:
    logits, lens = torch.tensor([[3.0, 1.0]]), torch.tensor([1])
    assert right_choice(logits, lens, torch.tensor([[0, 1]])).tolist() == [[0, -1]]
    assert select_topk(logits, lens, topk=3).tolist() == [[0, -1, -1]]


def test_workers_of_an_empty_batch_start_in_its_first_request() -> None:
    assert first_requests(torch.zeros(3, dtype=torch.int64)).tolist() == [0] * 8
    assert set(first_requests(torch.tensor([0, 2, 0, 1])).tolist()) == {1, 3}


def test_a_position_past_the_table_is_an_illegal_address(approved: Approved) -> None:
    table, rows = torch.zeros(1, 2, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    with approved.raises(IllegalAddress):
        map_indices(torch.tensor([[128]], dtype=torch.int32), table, rows, page_size=64)


def test_keys_of_records_have_the_scale_of_their_own_token() -> None:
    cache = torch.zeros(2, 64, 132, dtype=torch.uint8)
    cache[1].view(-1)[3 * 128] = torch.ones(1).to(torch.float8_e4m3fn).view(torch.uint8)[0]
    cache[1].view(-1)[64 * 128 :].view(torch.float32)[3] = 0.5
    keys = load_keys(cache, torch.tensor([[1]]))
    assert keys.shape == (1, 1, 64, 128) and keys[0, 0, 3, 0] == 0.5 and keys.count_nonzero() == 1


@pytest.mark.parametrize("num_heads", [4, 64])
@pytest.mark.parametrize("kv", ["fp32", "indexer_planar"])
def test_a_score_has_the_scale_that_its_bound_assumes(num_heads: int, kv: str) -> None:
    params = IndexLogitsParams(num_heads=num_heads, kv=kv, seq_lens=(400,) * 60, query_len=1)
    logits, defined = index_logits_reference.expected(index_logits_inputs.draw(params, 3))

    assert float(logits[defined].std()) == pytest.approx(
        bound("index_logits.fp32").least_scale, rel=0.15
    )


def test_a_row_of_one_key_whose_heads_cancel_is_judged_by_the_scale_of_the_heads() -> None:
    want = torch.zeros(1, 384, dtype=torch.float64)
    want[0, 0] = -0.0249
    of_rounding, wrong = want + 0.0, want + 0.0
    of_rounding[0, 0] += 2e-7
    wrong[0, 0] += 1e-3
    live, limit = torch.ones(1, dtype=torch.bool), bound("index_logits.bf16")

    assert compare(of_rounding.float(), want, live, limit).mismatch is None
    assert compare(wrong.float(), want, live, limit).mismatch is not None
