"""Sparse layers: the right tokens are chosen, -1 fills up, and no list holds what nobody chose."""

from __future__ import annotations

import pytest
import torch

from harness.engine.faults.attention import store_whole_tiles
from harness.engine.sparse_attention import TILE, store_decode_rows, store_index_keys
from harness.ops.map_indices.kernels.dense import map_indices
from harness.ops.select_topk.faults import topk_by_threshold
from harness.ops.select_topk.kernels.by_row import take_topk

EMPTY = torch.tensor([[99]], dtype=torch.int32)


def test_the_best_of_the_first_tokens_are_taken_and_short_lists_are_filled_up() -> None:
    logits = torch.tensor([[1.0, 5.0, 3.0, 9.0], [1.0, 5.0, 3.0, 9.0], [1.0, 5.0, 3.0, 9.0]])
    taken = take_topk(logits, torch.tensor([3, 1, 0]), EMPTY.expand(3, 2))
    assert taken.tolist() == [[1, 2], [0, -1], [-1, -1]]


def test_a_table_narrower_than_the_list_leaves_the_rest_empty() -> None:
    assert take_topk(
        torch.tensor([[1.0, 2.0]]), torch.tensor([2]), EMPTY.expand(1, 4)
    ).tolist() == [[1, 0, -1, -1]]


@pytest.mark.parametrize("unwritten", [torch.nan, torch.inf, 0.0, 1e30])
def test_scores_past_the_length_choose_nothing_whatever_they_hold(unwritten: float) -> None:
    logits = torch.tensor([[-1.0, -5.0, unwritten, unwritten]])
    assert take_topk(logits, torch.tensor([2]), EMPTY.expand(1, 2)).tolist() == [[0, 1]]


def test_the_fault_leaves_positions_as_memory_was() -> None:
    logits = torch.tensor([[-1.0, -5.0, torch.nan, torch.nan]])
    assert topk_by_threshold(logits, torch.tensor([2]), EMPTY.expand(1, 2)).tolist() == [[99, 99]]


def test_padding_behind_the_rows_of_decodes_does_not_reach_those_of_prompts() -> None:
    selected, tiles = torch.arange(6)[:, None], torch.full((TILE, 1), 77)
    store_decode_rows(selected, tiles, 1)
    assert selected.flatten().tolist() == [77, 1, 2, 3, 4, 5]
    store_whole_tiles(selected, tiles, 1)
    assert selected.flatten().tolist() == [77, 77, 77, 77, 4, 5]


def test_positions_become_slots_of_their_own_request() -> None:
    tables = torch.tensor([[3, 5], [7, 0]], dtype=torch.int32)
    positions, rows = torch.tensor([[0, 65, -1], [63, -1, -1]], dtype=torch.int32), torch.arange(2)
    slots = map_indices(positions, tables, rows, page_size=64)
    assert slots.tolist() == [[3 * 64, 5 * 64 + 1, -1], [7 * 64 + 63, -1, -1]]


def test_keys_of_padding_are_not_stored() -> None:
    cache = torch.zeros(3, 64, 2)
    store_index_keys(torch.tensor([[1.0, 1.0], [2.0, 2.0]]), cache, torch.tensor([70, -1]))
    assert cache[1, 6].tolist() == [1.0, 1.0] and int(cache.count_nonzero()) == 2
