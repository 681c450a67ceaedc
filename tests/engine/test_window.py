"""Layers with a sliding window: what is given back, what the table holds then, and that only unseen
blocks go.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.engine.schedule.block_pool import BlockPool
from harness.engine.schedule.config import NULL_BLOCK
from harness.engine.schedule.scheduler import Scheduler, first_visible
from harness.engine.schedule.sequence import Sequence

from .conftest import Advance  # type: ignore[import-not-found]


@pytest.mark.parametrize(
    ("computed", "window", "first"), [(0, 5, 0), (4, 5, 0), (5, 5, 1), (130, 1, 130)]
)
def test_a_query_sees_a_window_that_ends_with_itself(
    computed: int, window: int, first: int
) -> None:
    sequence = Sequence(0, [0] * 200, 1, num_computed_tokens=computed)
    assert first_visible(sequence, window) == first


def test_blocks_before_the_window_go_back_to_the_pool_and_the_null_block_takes_their_place(
    advance: Advance,
) -> None:
    made = Scheduler(BlockPool(12), 200, 8, needs_state=False, window=20)
    sequence = Sequence(0, [0] * 130, 3)
    made.add(sequence)
    advance(made, made.schedule())
    before = list(sequence.window_blocks)
    step = made.schedule()
    assert sequence.window_blocks == [NULL_BLOCK, before[1], before[2]]
    assert step.freed_blocks == (before[0],) and before[0] in made.pool.free_blocks
    assert NULL_BLOCK not in sequence.blocks


@settings(max_examples=60, derandomize=True)
@given(
    requests=st.lists(st.tuples(st.integers(1, 200), st.integers(1, 70)), min_size=1, max_size=4),
    window=st.integers(1, 150),
    max_batched_tokens=st.integers(8, 100),
    num_blocks=st.integers(12, 20),
)
def test_every_visible_position_keeps_its_block_and_all_come_back(
    advance: Advance,
    requests: list[tuple[int, int]],
    window: int,
    max_batched_tokens: int,
    num_blocks: int,
) -> None:
    made = Scheduler(BlockPool(num_blocks), max_batched_tokens, 4, needs_state=False, window=window)
    for number, (prompt, count) in enumerate(requests):
        made.add(Sequence(number, [0] * prompt, count))
    for _ in range(20_000):
        if not made.has_work:
            break
        step = made.schedule()
        for item in step.scheduled:
            sequence = item.sequence
            seen = range(
                first_visible(sequence, window), sequence.num_computed_tokens + item.num_new_tokens
            )
            assert NULL_BLOCK not in {sequence.window_blocks[position // 64] for position in seen}
        lists = [s.blocks + [b for b in s.window_blocks if b != NULL_BLOCK] for s in made.running]
        owned = [block for blocks in lists for block in blocks]
        assert len(owned) == len(set(owned)) and not set(owned) & set(made.pool.free_blocks)
        advance(made, step)
    assert not made.has_work and made.pool.num_free_blocks == made.pool.num_usable_blocks
