"""Pages shared by prompts: found by what they hold, kept while anybody owns them, forgotten when
given away.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pydantic import ValidationError
from torch_poison.patterns import Poison

from harness.core.engine_params import EngineParams
from harness.core.errors import InputError
from harness.engine.engine import ReferenceEngine
from harness.engine.model.transformer import CausalLM
from harness.engine.schedule.block_pool import BlockPool, Prefix, prefixes, up_to_page_end
from harness.engine.schedule.config import model_config
from harness.engine.schedule.scheduler import Scheduler
from harness.engine.schedule.sequence import Sequence
from tests.engine.conftest import serve_all
from tests.transcripts import Approved

from .conftest import Advance  # type: ignore[import-not-found]

MakeEngine = Callable[[EngineParams], ReferenceEngine]

PROMPT = list(range(150))


def scheduler(num_blocks: int = 12, max_batched_tokens: int = 200) -> Scheduler:
    return Scheduler(
        BlockPool(num_blocks), max_batched_tokens, 8, needs_state=False, prefix_caching=True
    )


def run_to_the_end(advance: Advance, made: Scheduler) -> None:
    while made.has_work:
        advance(made, made.schedule())


def test_a_hash_covers_all_tokens_before_a_block_too() -> None:
    first, second = prefixes(PROMPT)
    assert first == next(prefixes(PROMPT[:64] + [0] * 64))
    assert second.hash != list(prefixes([7] * 64 + PROMPT[64:]))[1].hash
    assert {prefix.hash for prefix in prefixes(PROMPT, 1)} == {0}


def test_a_second_prompt_starts_with_the_full_pages_of_the_first(advance: Advance) -> None:
    made = scheduler()
    first, second = Sequence(0, list(PROMPT), 2), Sequence(1, list(PROMPT), 2)
    made.add(first)
    advance(made, made.schedule())
    made.add(second)
    step = made.schedule()
    assert second.blocks[:2] == first.blocks[:2] and second.num_shared_tokens == 128
    assert {item.sequence.request: item.num_new_tokens for item in step.scheduled}[1] == 22
    assert len(step.new_attention_blocks) == 1


def test_the_last_token_of_a_prompt_is_always_computed(advance: Advance) -> None:
    made = scheduler()
    for request in range(2):
        made.add(Sequence(request, PROMPT[:128], 1))
        run_to_the_end(advance, made)
    second = Sequence(2, PROMPT[:128], 1)
    made.add(second)
    made.schedule()
    assert second.num_shared_tokens == 64


def test_a_page_is_not_found_in_the_step_that_writes_it() -> None:
    made = scheduler()
    first, second = Sequence(0, list(PROMPT), 2), Sequence(1, list(PROMPT), 2)
    made.add(first)
    made.add(second)
    made.schedule()
    assert second.num_shared_tokens == 0


def test_a_request_that_is_cancelled_before_its_step_ran_leaves_nothing_to_find() -> None:
    made = scheduler()
    first, second = Sequence(0, list(PROMPT), 2), Sequence(1, list(PROMPT), 2)
    made.add(first)
    made.schedule()
    made.cancel(first)
    made.add(second)
    assert set(made.schedule().freed_blocks) == {1, 2, 3} and second.num_shared_tokens == 0


FIRST, SECOND = prefixes([3] * 128)


def test_another_prefix_with_the_hash_of_a_cached_one_is_not_found_and_not_cached() -> None:
    pool = BlockPool(5)
    given = pool.allocate(2)
    other = Prefix(FIRST.hash, SECOND.tokens)
    pool.cache(given[0], FIRST)
    pool.cache(given[1], other)
    assert pool.find([other]) == [] and pool.find([FIRST]) == [given[0]]
    assert pool.events["collision"] == 1


def test_a_shared_page_is_freed_when_its_last_owner_leaves() -> None:
    pool = BlockPool(6)
    (block,) = pool.allocate(1)
    pool.cache(block, FIRST)
    pool.share([block])
    assert pool.free([block]) == [] and block not in pool.free_blocks
    assert pool.free([block]) == [] and block in pool.free_blocks
    assert pool.find([FIRST]) == [block]


def test_a_cached_page_that_is_free_can_be_taken_over_and_is_forgotten_when_it_is_given() -> None:
    pool = BlockPool(5)
    given = pool.allocate(2)
    pool.cache(given[0], FIRST)
    assert pool.free(given) == [given[1]]
    pool.share(pool.find([FIRST, SECOND]))
    assert pool.num_free_blocks == 2
    pool.free([given[0]])
    pool.allocate(3)
    assert pool.find([FIRST]) == []


def test_a_flush_forgets_every_prefix_and_names_the_free_blocks() -> None:
    pool = BlockPool(5)
    given = pool.allocate(1)
    pool.cache(given[0], FIRST)
    pool.free(given)
    assert sorted(pool.flush()) == [1, 2, 3] and pool.find([FIRST]) == []


def test_windows_of_another_request_cannot_be_shared(approved: Approved) -> None:
    with approved.raises(ValidationError):
        EngineParams.model_validate({"prefix_caching": True, "layers": ("window", "mla")})


def test_an_engine_refuses_a_model_whose_layers_its_parameters_do_not_know_of(
    approved: Approved,
) -> None:
    model = CausalLM(model_config(EngineParams(layers=("window", "mla"))))
    with approved.raises(InputError):
        ReferenceEngine(model, EngineParams(prefix_caching=True), Poison("nan", frozenset()), 150)


def test_a_flush_between_requests_only(make_engine: MakeEngine) -> None:
    made: ReferenceEngine = make_engine(EngineParams(prefix_caching=True))
    made.add_request(PROMPT[:70], 3)
    made.step()
    with pytest.raises(ValueError, match="flushed between requests"):
        made.flush()


def test_after_a_flush_nothing_is_shared_and_no_byte_is_left(make_engine: MakeEngine) -> None:
    made = make_engine(EngineParams(prefix_caching=True))
    for _ in range(2):
        sequence = made.add_request([token % 100 for token in PROMPT[:70]], 2)
        serve_all(made)
    assert sequence.num_shared_tokens == 64
    made.flush()
    assert not made.runner.memory.data.any()
    sequence = made.add_request([token % 100 for token in PROMPT[:70]], 2)
    serve_all(made)
    assert sequence.num_shared_tokens == 0


@pytest.mark.parametrize(
    ("num_computed", "num_new", "num_tokens", "cut"),
    [
        (0, 150, 150, 128),
        (0, 100, 150, 64),
        (0, 40, 150, 40),
        (64, 86, 150, 64),
        (128, 22, 150, 22),
        (0, 128, 128, 64),
        (64, 64, 128, 64),
        (127, 1, 128, 1),
        (0, 64, 64, 64),
        (40, 30, 150, 24),
    ],
)
def test_a_chunk_ends_at_the_last_page_end_before_the_last_token(
    num_computed: int, num_new: int, num_tokens: int, cut: int
) -> None:
    assert up_to_page_end(num_computed, num_new, num_tokens) == cut


def hybrid(num_blocks: int = 20) -> Scheduler:
    return Scheduler(BlockPool(num_blocks, "lifo"), 200, 8, needs_state=True, prefix_caching=True)


def test_a_prompt_starts_from_a_copy_of_the_state_at_the_end_of_its_pages(advance: Advance) -> None:
    made = hybrid()
    first = Sequence(0, list(PROMPT), 2)
    made.add(first)
    step = made.schedule()
    assert step.scheduled[0].num_new_tokens == 128 and step.state_copies == ()
    advance(made, step)
    ((source, kept),) = made.schedule().state_copies
    assert source == first.state_block and kept in made.pool.free_blocks
    made.cancel(first)
    second = Sequence(1, list(PROMPT), 2)
    made.add(second)
    assert (
        made.schedule().state_copies == ((kept, second.state_block),)
        and second.num_shared_tokens == 128
    )


def test_pages_without_their_state_and_a_state_without_its_pages_are_not_shared(
    advance: Advance,
) -> None:
    made = hybrid()
    made.add(Sequence(0, list(PROMPT), 2))
    run_to_the_end(advance, made)
    pages = list(prefixes(PROMPT))
    assert made.pool.pages_with_state(pages, 2) == 2 and made.pool.pages_with_state(pages, 1) == 0
    shorter = Sequence(1, PROMPT[:100], 1)
    made.add(shorter)
    made.schedule()
    assert shorter.num_shared_tokens == 0 and shorter.state_source is None


def test_answers_are_the_same_from_a_copied_state(make_engine: MakeEngine) -> None:
    prompts = [PROMPT[:131], PROMPT[:131], PROMPT[:140], PROMPT[:70]]
    prompts = [[token % 128 for token in prompt] for prompt in prompts]
    answers = []
    for prefix_caching in (False, True):
        made = make_engine(
            EngineParams(layers=("kda", "mla"), kv="fp32", prefix_caching=prefix_caching)
        )
        given = []
        for prompt in prompts:
            sequence = made.add_request(prompt, 5)
            while made.scheduler.has_work:
                made.step()
            given.append((sequence.tokens, sequence.num_shared_tokens))
        answers.append(given)
    assert [tokens for tokens, _ in answers[0]] == [tokens for tokens, _ in answers[1]]
    assert [shared for _, shared in answers[1]] == [0, 128, 128, 64]
