"""The loop itself: requests that are refused, sizes that are captured, and steps that mix kinds of
work.
"""

from __future__ import annotations

import pytest
import torch
from torch_poison.patterns import Poison

from harness.core.engine_params import EngineParams
from harness.core.errors import InputError
from harness.engine.capture import reachable_sizes
from harness.engine.engine import ReferenceEngine
from harness.engine.model.transformer import CausalLM
from harness.engine.paged_model import Forwarded
from harness.engine.runner import take_logits
from harness.engine.schedule.config import model_config
from harness.judge.probes.notes import Notes
from tests.engine.conftest import notes_of, serve_all

FRIENDLY = Poison("nan", frozenset())


def engine(params: EngineParams, max_model_len: int = 150) -> ReferenceEngine:
    model = CausalLM(model_config(params)).reset_parameters(0).eval().requires_grad_(False)
    return ReferenceEngine(model, params, FRIENDLY, max_model_len, Notes(params, FRIENDLY))


def test_requests_get_the_tokens_they_asked_for_and_all_blocks_come_back() -> None:
    made = engine(EngineParams(max_batched_tokens=64))
    sequences = [made.add_request([1, 2, 3], 4), made.add_request([5] * 70, 2)]
    serve_all(made)
    assert [sequence.num_generated_tokens for sequence in sequences] == [4, 2]
    assert [len(notes_of(made).answers.logits[sequence.request]) for sequence in sequences] == [
        4,
        2,
    ]
    assert made.pool.num_free_blocks == made.pool.num_usable_blocks


def test_a_token_is_the_one_with_the_largest_logit() -> None:
    made = engine(EngineParams())
    sequence = made.add_request([1, 2, 3], 4)
    serve_all(made)
    chosen = [int(row.argmax()) for row in notes_of(made).answers.logits[sequence.request]]
    assert sequence.tokens[3:] == chosen


def test_a_request_that_arrives_later_joins_the_batch() -> None:
    made = engine(EngineParams())
    first = made.add_request([1, 2, 3], 5)
    made.step()
    second = made.add_request([4] * 9, 2)
    assert [(len(item.logits), item.sequence) for item in made.step()] == [(1, first), (1, second)]
    serve_all(made)
    assert first.is_finished and second.is_finished


@pytest.mark.parametrize(
    ("prompt", "count", "message"),
    [([], 3, "needs a prompt"), ([1], 0, "needs a prompt"), ([1] * 149, 3, "grows to 151 tokens")],
)
def test_a_request_that_cannot_be_served_is_refused(
    prompt: list[int], count: int, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        engine(EngineParams()).add_request(prompt, count)


def test_sizes_are_captured_up_to_the_first_that_holds_every_request() -> None:
    assert reachable_sizes((1, 2, 4, 8), 3) == [1, 2, 4]
    assert reachable_sizes((8, 4), 4) == [4]
    assert reachable_sizes((1, 2), 9) == [1, 2]


def test_a_batch_larger_than_every_graph_runs_eagerly() -> None:
    made = engine(EngineParams(graph="full", capture_sizes=(1, 2), max_num_seqs=3))
    for _ in range(3):
        made.add_request([1, 2, 3], 3)
    serve_all(made)
    assert notes_of(made).twins.replays == []
    made.add_request([1, 2, 3], 3)
    serve_all(made)
    assert len(notes_of(made).twins.replays) == 2


def test_logits_are_taken_out_of_graph_memory() -> None:
    forwarded = Forwarded(torch.zeros(2, 3), torch.ones(2, 4), [])
    taken = take_logits(forwarded, 1)
    forwarded.logits.fill_(5.0)
    assert taken.tolist() == [[1.0] * 4]


def test_the_drafter_guesses_a_token_for_each_request() -> None:
    for graph in ("none", "full"):
        made = engine(EngineParams.model_validate({"graph": graph, "drafter": True}))
        made.add_request([1, 2, 3], 4)
        serve_all(made)
        assert made.runner.drafts is not None and 0 <= int(made.runner.drafts) < 128


def test_dummy_steps_do_not_move_the_answers() -> None:
    answers = []
    for dummy_steps in (False, True):
        for graph in ("none", "full"):
            made = engine(
                EngineParams.model_validate(
                    {"dummy_steps": dummy_steps, "graph": graph, "kv": "fp32"}
                )
            )
            made.add_request([1, 2, 3], 4)
            serve_all(made)
            answers.append(torch.stack(notes_of(made).answers.logits[0]))
    assert torch.equal(answers[0], answers[2]) and torch.equal(answers[1], answers[3])
