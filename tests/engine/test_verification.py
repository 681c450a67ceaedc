"""Speculative decoding: drafts are right, wrong, or right up to somewhere, and the answer never
depends on them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from harness.core.engine_params import EngineParams
from harness.engine.engine import ReferenceEngine
from harness.engine.faults.memory import token_above_all
from harness.engine.schedule.sequence import Sequence
from harness.engine.speculation import SuffixDrafts, confirmed, greedy_tokens
from tests.engine.conftest import notes_of, serve_all
from tests.transcripts import Approved

MakeEngine = Callable[[EngineParams], ReferenceEngine]


@pytest.mark.parametrize(
    ("drafts", "tokens", "given"),
    [
        ([7, 8], [7, 8, 9], [7, 8, 9]),
        ([7, 8], [7, 5, 9], [7, 5]),
        ([7, 8], [1, 8, 9], [1]),
        ([], [4], [4]),
    ],
)
def test_tokens_are_confirmed_up_to_the_first_wrong_draft(
    drafts: list[int], tokens: list[int], given: list[int]
) -> None:
    assert confirmed(drafts, tokens) == given


def test_a_row_of_nan_gives_a_token_of_the_vocabulary() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [torch.nan] * 3])
    assert greedy_tokens(logits)[0] == 1 and 0 <= int(greedy_tokens(logits)[1]) < 3
    assert token_above_all(logits).tolist() == [1, 3]


def test_drafts_are_what_followed_the_last_tokens_before() -> None:
    drafts = SuffixDrafts(3)
    assert drafts.propose(Sequence(0, [1, 2, 3, 4, 5, 6], 1)) == [0, 0, 0]
    assert drafts.propose(Sequence(1, [9, 2, 3], 1)) == [4, 5, 6]
    assert drafts.propose(Sequence(2, [4, 5], 1)) == [6, 0, 0]


def answers(make_engine: MakeEngine, **params: Any) -> tuple[list[list[int]], int]:
    """Tokens of three requests, asked twice, and how many steps it took."""
    made = make_engine(EngineParams.model_validate({"kv": "fp32", **params}))
    tokens = []
    for _ in range(2):
        sequences = [made.add_request([n + 1] * length, 6) for n, length in enumerate((5, 64, 70))]
        serve_all(made)
        tokens += [sequence.tokens for sequence in sequences]
    return tokens, notes_of(made).answers.num_steps


@pytest.mark.first(2)
@pytest.mark.parametrize("graph", ["none", "full"])
@pytest.mark.parametrize("layers", [("mla", "mla"), ("window", "mla"), ("sparse", "mla")])
def test_drafts_change_how_long_it_takes_and_nothing_else(
    make_engine: MakeEngine, layers: tuple[str, ...], graph: str
) -> None:
    plain, steps = answers(make_engine, layers=layers, graph=graph)
    for count in (1, 3):
        drafted, fewer = answers(make_engine, layers=layers, graph=graph, speculative_tokens=count)
        assert drafted == plain and fewer < steps


def test_a_state_cannot_be_taken_back(approved: Approved) -> None:
    with approved.raises(ValidationError):
        EngineParams(layers=("kda", "mla"), speculative_tokens=1)


def test_a_step_must_have_room_for_all_drafts_of_a_request(approved: Approved) -> None:
    with approved.raises(ValidationError):
        EngineParams(max_batched_tokens=3, speculative_tokens=3)
