"""Memory of a pool between the segments of a graph: what tensors own at the break stays, all else
is filled.
"""

from __future__ import annotations

from typing import Any

from mla_harness_vllm.serve.segment_fill import (
    CHUNK_BYTES,
    SegmentFill,
    blocks_of,
    chunked,
    without,
)


def segment(pool: tuple[int, int], *blocks: tuple[int, int, bool]) -> dict[str, Any]:
    rows = [
        {"address": at, "size": n, "state": "active_allocated" if used else "inactive"}
        for at, n, used in blocks
    ]
    return {"segment_pool_id": pool, "blocks": rows}


def test_blocks_of_other_pools_are_left_out() -> None:
    snapshot = [
        segment((0, 1), (512, 512, True), (1024, 512, False)),
        segment((0, 0), (9216, 512, False)),
    ]
    assert blocks_of((0, 1), snapshot, active=True) == [(512, 512)]
    assert blocks_of((0, 1), snapshot, active=False) == [(1024, 512)]


def test_owned_ranges_are_cut_out_of_free_ones() -> None:
    assert without([(0, 100)], [(0, 10), (40, 20), (90, 30)]) == [(10, 30), (60, 30)]
    assert without([(0, 10), (20, 10)], [(5, 20)]) == [(0, 5), (25, 5)]
    assert without([(0, 10)], [(0, 10)]) == []


def test_long_ranges_are_cut_into_chunks() -> None:
    assert chunked([(0, CHUNK_BYTES + 512)]) == [(0, CHUNK_BYTES), (CHUNK_BYTES, 512)]


def test_what_a_tensor_owned_at_a_break_is_not_filled_there_after_it_was_freed() -> None:
    pool = (0, 7)
    states = iter(
        [
            [
                segment(pool, (0, 512, True), (512, 512, False))
            ],  # the first break: an activation lives
            [segment(pool, (0, 512, False), (512, 512, True))],  # the end: only the output lives
            [segment(pool, (0, 512, False), (512, 512, False))],  # at the replay: nothing is owned
        ]
    )
    fill = SegmentFill(pool, lambda: next(states))
    fill.note()
    fill.note()
    assert fill.to_fill() == [[(512, 512)]]
