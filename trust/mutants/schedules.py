"""Random schedules without a model: requests that share prefixes, draft, leave and preempt each
other in tight pools.
"""

from __future__ import annotations

from collections.abc import Hashable
from random import Random
from typing import Any

from harness.core.errors import InputError
from harness.engine.schedule.block_pool import BlockPool, CacheGroup, groups_to_zero
from harness.engine.schedule.config import PAGE_SIZE
from harness.engine.schedule.scheduler import Scheduler
from harness.engine.schedule.sequence import ScheduledSequence, Sequence

MOST_STEPS = 60


def trace(seed: int) -> Hashable:
    """All that the schedule of a seed decides: tokens, rows, blocks, freed and zeroed blocks,
    order, each step.
    """
    rng = Random(f"schedule:{seed}")
    made, drafts = _scheduler(rng)
    steps: list[Hashable] = []
    sequences = list(_requests(rng, made, drafts))
    queue = list(sequences)
    for _ in range(MOST_STEPS):
        while queue and rng.random() < 0.6:
            try:
                made.add(queue.pop(0))
            except InputError as error:
                steps.append(str(error))
        if not made.has_work:
            if not queue:
                break
            continue
        step = made.schedule()
        steps.append(
            (
                tuple(
                    (*_state(item.sequence), item.num_new_tokens, item.num_rows)
                    for item in step.scheduled
                ),
                (
                    step.freed_blocks,
                    step.new_attention_blocks,
                    step.new_state_blocks,
                    step.new_window_blocks,
                ),
                (
                    step.blocks_to_zero,
                    step.state_copies,
                    made.pool.free_blocks,
                    made.pool.num_references,
                ),
                tuple(one.request for one in made.waiting),
            )
        )
        for item in step.scheduled:
            _advance(rng, item, drafts)
            if item.sequence.is_finished:
                made.finish(item.sequence)
        _between(rng, made)
    return (tuple(steps), tuple(map(_state, sequences)))


def _scheduler(rng: Random) -> tuple[Scheduler, int]:
    needs_state = rng.random() < 0.35
    drafts = 0 if needs_state else rng.choice([0, 0, 1, 2, 3])
    window = 0 if rng.random() < 0.55 else rng.choice([1, 20, 48, 64, 65, 100, 200])
    groups = [CacheGroup("attention", rng.choice(["bf16", "fp8_e4m3"]))]
    groups += [CacheGroup("window", "bf16")] * bool(window) + [
        CacheGroup("state", "state")
    ] * needs_state
    made = Scheduler(
        BlockPool(rng.choice([5, 6, 7, 8, 9, 10, 12, 16, 24, 90]), rng.choice(["fifo", "lifo"])),
        drafts + rng.choice([1, 2, 5, 16, 24, 64, 100, 300]),
        rng.randint(1, 6),
        needs_state=needs_state,
        least_admitted=rng.choice([1, 1, 1, 2, 3]),
        prefix_caching=not window and rng.random() < 0.6,
        window=window,
        num_hashes=rng.choice([None, None, 1, 2, 5]),
        zeroed_groups=groups_to_zero(tuple(groups)),
    )
    if rng.random() < 0.2:
        made.pool.reserve()
    return made, drafts


def _requests(rng: Random, made: Scheduler, drafts: int) -> list[Sequence]:
    pages = [[rng.randrange(3) for _ in range(PAGE_SIZE)] for _ in range(3)]
    found = []
    for number in range(rng.randint(1, 7)):
        start = [
            token for _ in range(rng.choice([0, 0, 1, 1, 2, 3])) for token in rng.choice(pages)
        ]
        if rng.random() < 0.03:
            start = pages[0] * rng.randint(20, 70)
        rest = rng.choice([1, 2, rng.randint(1, 70), PAGE_SIZE - 1, PAGE_SIZE, PAGE_SIZE + 1])
        tokens = start + [rng.randrange(3) for _ in range(rest)]
        one = Sequence(
            number, tokens, rng.choice([1, 2, rng.randint(1, 12), 40]), query_len=1 + drafts
        )
        one.model = (0, rng.choice([0, 0, 0, 1]))
        found.append(one)
    return found


def _advance(rng: Random, item: ScheduledSequence, drafts: int) -> None:
    """What an engine does with the tokens of a step; some of the drafts come true."""
    one = item.sequence
    if one.drafts:
        taken = rng.randint(1, len(one.drafts) + 1)
        one.num_computed_tokens += taken
        given = [rng.randrange(3) for _ in range(taken)][
            : one.max_tokens - one.num_generated_tokens
        ]
    else:
        one.num_computed_tokens += item.num_new_tokens
        given = [rng.randrange(3)] if one.num_uncomputed_tokens == 0 else []
    one.tokens += given
    is_drafted = drafts and one.is_decoding and not one.is_finished
    one.drafts = [rng.randrange(3) for _ in range(drafts)] if is_drafted else []


def _between(rng: Random, made: Scheduler) -> None:
    """An abort, a restart of all, or a flush, now and then."""
    live = [*made.running, *made.waiting]
    chance = rng.random()
    if live and chance < 0.03:
        made.abort(rng.choice(live))
    elif made.running and chance < 0.05:
        made.start_over(list(made.running))
    elif not live and chance < 0.3:
        made.pool.flush()


def _state(one: Sequence) -> tuple[Any, ...]:
    return (
        one.request,
        tuple(one.tokens[one.num_prompt_tokens :]),
        one.num_computed_tokens,
        one.num_shared_tokens,
        tuple(one.blocks),
        tuple(one.window_blocks),
        one.state_block,
        one.num_evicted_pages,
        len(one.drafts),
    )
