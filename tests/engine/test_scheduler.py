"""The scheduler mixes decodes and prompts, keeps its budget, and never gets stuck."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.errors import InputError
from harness.engine.schedule.block_pool import BlockPool
from harness.engine.schedule.scheduler import Scheduler
from harness.engine.schedule.sequence import Sequence, Step
from tests.transcripts import Approved

from .conftest import Advance  # type: ignore[import-not-found]


def scheduler(requests: list[tuple[int, int]], **options: int) -> Scheduler:
    settings = {
        "num_blocks": 24,
        "max_batched_tokens": 64,
        "max_num_seqs": 8,
        "needs_state": 0,
    } | options
    made = Scheduler(
        BlockPool(settings["num_blocks"]),
        settings["max_batched_tokens"],
        settings["max_num_seqs"],
        needs_state=bool(settings["needs_state"]),
    )
    for number, (prompt, count) in enumerate(requests):
        made.add(Sequence(number, [0] * prompt, count))
    return made


def describe(step: Step) -> list[tuple[int, int, int, bool]]:
    """(request, context, new tokens, is decode) of each scheduled sequence."""
    return [
        (
            item.sequence.request,
            item.sequence.num_computed_tokens,
            item.num_new_tokens,
            item.is_decode,
        )
        for item in step.scheduled
    ]


def test_a_step_mixes_decodes_prompts_with_context_and_prompts_without(advance: Advance) -> None:
    made = scheduler([(5, 4), (70, 2), (17, 3), (30, 3)])
    seen = []
    for _ in range(2):
        step = made.schedule()
        seen.append(describe(step))
        advance(made, step)
    assert seen[0] == [(0, 0, 5, False), (1, 0, 59, False)]
    assert seen[1] == [(0, 5, 1, True), (1, 59, 11, False), (2, 0, 17, False), (3, 0, 30, False)]


def test_decodes_come_first_and_a_prompt_is_cut_where_the_budget_ends(advance: Advance) -> None:
    made = scheduler([(5, 9), (6, 9), (100, 2)], max_batched_tokens=20)
    advance(made, made.schedule())
    assert describe(made.schedule()) == [(0, 5, 1, True), (1, 6, 1, True), (2, 9, 18, False)]


def test_a_last_prompt_token_on_top_of_context_runs_as_a_decode(advance: Advance) -> None:
    made = scheduler([(21, 2)], max_batched_tokens=20)
    advance(made, made.schedule())
    assert describe(made.schedule()) == [(0, 20, 1, True)]


def test_no_more_requests_run_than_allowed() -> None:
    made = scheduler([(3, 3)] * 5, max_num_seqs=2)
    assert [row[0] for row in describe(made.schedule())] == [0, 1]


def test_blocks_are_given_as_tokens_need_them(advance: Advance) -> None:
    made = scheduler([(64, 3)], max_batched_tokens=40)
    seen = []
    while made.has_work:
        step = made.schedule()
        seen.append(len(step.new_attention_blocks))
        advance(made, step)
    assert seen == [1, 0, 1, 0]
    assert made.pool.num_free_blocks == made.pool.num_usable_blocks


def test_a_request_of_a_hybrid_model_gets_a_state_block_once(advance: Advance) -> None:
    made = scheduler([(70, 3)], max_batched_tokens=40, needs_state=1)
    states, freed = [], []
    while made.has_work:
        step = made.schedule()
        states += step.new_state_blocks
        advance(made, step)
    freed = made.schedule().freed_blocks
    assert len(states) == 1 and states[0] in freed and len(freed) == 3


def test_the_latest_request_is_preempted_when_blocks_run_out_and_starts_again(
    advance: Advance,
) -> None:
    made = scheduler([(60, 20), (60, 20)], num_blocks=5, max_batched_tokens=200)
    freed: list[int] = []
    restarted = False
    while made.has_work:
        step = made.schedule()
        freed += step.freed_blocks
        restarted |= any(
            item.sequence.request == 1 and item.num_new_tokens > 60 for item in step.scheduled
        )
        advance(made, step)
    assert made.num_preemptions == 1 and restarted and freed
    assert made.pool.num_free_blocks == made.pool.num_usable_blocks


def test_a_request_that_can_never_fit_is_refused_when_it_is_added(approved: Approved) -> None:
    with approved.raises(InputError):
        scheduler([(100, 40)], num_blocks=4)


def test_the_block_of_the_last_generated_token_is_not_needed() -> None:
    scheduler([(100, 29)], num_blocks=4)


@settings(max_examples=60, derandomize=True)
@given(
    requests=st.lists(st.tuples(st.integers(1, 150), st.integers(1, 12)), min_size=1, max_size=6),
    num_blocks=st.integers(6, 12),
    max_batched_tokens=st.integers(1, 100),
    max_num_seqs=st.integers(1, 5),
    needs_state=st.integers(0, 1),
)
def test_every_request_finishes_within_the_budget_and_returns_its_blocks(
    advance: Advance,
    requests: list[tuple[int, int]],
    num_blocks: int,
    max_batched_tokens: int,
    max_num_seqs: int,
    needs_state: int,
) -> None:
    made = scheduler(
        requests,
        num_blocks=num_blocks,
        max_batched_tokens=max_batched_tokens,
        max_num_seqs=max_num_seqs,
        needs_state=needs_state,
    )
    sequences = list(made.waiting)
    for _ in range(20_000):
        if not made.has_work:
            break
        num_preemptions = made.num_preemptions
        step = made.schedule()
        assert step.scheduled
        if made.num_preemptions > num_preemptions:
            # So the conditions of the engine have no prompt and no last token of one in such a
            # step.
            sequences_of_step = [item.sequence for item in step.scheduled]
            assert all(
                one.num_generated_tokens and one.preempted_at != len(one.tokens)
                for one in sequences_of_step
            )
            assert all(item.is_decode for item in step.scheduled)
        assert sum(item.num_new_tokens for item in step.scheduled) <= max_batched_tokens
        assert len(step.scheduled) <= max_num_seqs
        owned = [block for item in step.scheduled for block in item.sequence.blocks]
        assert len(owned) == len(set(owned))
        for item in step.scheduled:
            assert (
                len(item.sequence.blocks) * 64
                >= item.sequence.num_computed_tokens + item.num_new_tokens
            )
        advance(made, step)
    assert not made.has_work
    assert [sequence.num_generated_tokens for sequence in sequences] == [
        count for _, count in requests
    ]
    assert made.pool.num_free_blocks == made.pool.num_usable_blocks


def test_prompts_wait_until_as_many_places_are_free_as_are_to_start_together(
    advance: Advance,
) -> None:
    made = scheduler(
        [(4, count) for count in (2, 2, 4, 4, 4, 4, 4)], max_num_seqs=4, max_batched_tokens=64
    )
    made.least_admitted = 2
    started = []
    while made.has_work:
        step = made.schedule()
        started.append(sum(not item.is_decode for item in step.scheduled))
        advance(made, step)
    # Four at once, two in the places of the short ones, and the last one alone, since nobody waits
    # behind it.
    assert [count for count in started if count] == [4, 2, 1]


def test_nobody_waits_while_nothing_runs() -> None:
    made = scheduler([(4, 1)], max_num_seqs=4)
    made.least_admitted = 4
    assert describe(made.schedule()) == [(0, 0, 4, False)]
