"""The block pool: whatever is asked of it, a block has one owner at most and none is lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.errors import InputError
from harness.engine.schedule.block_pool import BlockPool, FreeList
from tests.transcripts import Approved


@settings(max_examples=100, derandomize=True)
@given(
    num_blocks=st.integers(3, 20),
    free_list=st.sampled_from(["fifo", "lifo"]),
    moves=st.lists(st.tuples(st.booleans(), st.integers(0, 19)), max_size=40),
)
def test_each_block_has_one_owner_or_is_free(
    num_blocks: int, free_list: FreeList, moves: list[tuple[bool, int]]
) -> None:
    pool = BlockPool(num_blocks, free_list)
    owned: list[list[int]] = []
    for take, number in moves:
        if take and number <= pool.num_free_blocks:
            owned.append(pool.allocate(number))
        elif not take and owned:
            pool.free(owned.pop(number % len(owned)))
        everywhere = [*pool.free_blocks, *(block for blocks in owned for block in blocks)]
        assert sorted(everywhere) == list(range(1, num_blocks - 1))
        assert pool.num_free_blocks == len(pool.free_blocks)


def test_the_null_block_and_the_trap_are_never_given() -> None:
    pool = BlockPool(6)
    assert pool.allocate(pool.num_usable_blocks) == [1, 2, 3, 4]
    assert pool.trap_block == 5


def test_a_fifo_list_gives_the_block_that_was_free_longest_and_a_lifo_list_the_latest() -> None:
    for free_list, expected in (("fifo", [3, 4]), ("lifo", [1, 2])):
        pool = BlockPool(6, free_list)  # type: ignore[arg-type]
        first = sorted(pool.allocate(4))[:2]
        pool.free([3, 4])
        pool.free(reversed(first))
        assert pool.allocate(2) == expected


def test_more_blocks_than_are_free_are_refused(approved: Approved) -> None:
    pool = BlockPool(5)
    with approved.raises(ValueError):
        pool.allocate(4)
    assert pool.num_free_blocks == 3


def test_a_block_is_freed_once() -> None:
    pool = BlockPool(5)
    (block,) = pool.allocate(1)
    pool.free([block])
    with pytest.raises(ValueError, match="has no owner"):
        pool.free([block])


def test_a_pool_without_room_for_the_reserved_blocks_is_refused(approved: Approved) -> None:
    with approved.raises(InputError):
        BlockPool(2)
