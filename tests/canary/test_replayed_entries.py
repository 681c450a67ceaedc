"""Choices among entries of a compressed cache, of which a position sees those that are complete."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
from canaries import random_model, replayed
from canaries.recorded import NONE, Decider, Ids

INDEX = Decider(2, "index")
CHOSEN, LENGTH = 8, 96
"""The indexer takes 8 of at most 24 entries, each of four tokens."""


@pytest.fixture(scope="module")
def model() -> Any:
    """A small DeepSeek V4."""
    row = random_model.ARCHITECTURES["deepseek_v4"]
    sizes = row.sizes | {"vocab_size": 64, "head_dim": 128, "index_n_heads": 4}
    sizes |= {"index_topk": CHOSEN}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(
            random_model.ARCHITECTURES, "deepseek_v4", dataclasses.replace(row, sizes=sizes)
        )
        return random_model.build("deepseek_v4", 0)


TOKENS = random_model.prompts(64, 0, (LENGTH,))[0]


def chosen(model: Any) -> Ids:
    """What the model chooses itself, as an engine records it."""
    with replayed.Replay(model, {}) as path:
        random_model.token_logprobs(model, TOKENS)
    return {INDEX: replayed.as_ids(path.taken[INDEX])}


def test_a_position_takes_the_entries_that_are_complete_and_a_choice_is_replayed(
    model: Any,
) -> None:
    ids = chosen(model)
    complete = (torch.arange(LENGTH) + 1) // 4
    assert (ids[INDEX] != NONE).sum(1).tolist() == complete.clamp(max=CHOSEN).tolist()
    found = replayed.follow(model, TOKENS, ids, 0, "bf16")
    # Nothing follows the last token, and the first 35 positions see no more than they may take.
    assert found.excesses == [] and found.num_decisions == int((complete > CHOSEN).sum())
    torch.testing.assert_close(found.truth, random_model.token_logprobs(model, TOKENS))


def found_with(model: Any, wrong: int, right: int | None = None) -> replayed.Excess:
    """The one finding if the token before the last takes `wrong` in place of one right entry."""
    ids = chosen(model)
    row = ids[INDEX][LENGTH - 2]
    row[0 if right is None else row.tolist().index(right)] = wrong
    (excess,) = replayed.follow(model, TOKENS, ids, 0, "bf16").excesses
    assert (excess.decider, excess.position) == (INDEX, LENGTH - 2)
    return excess


def test_the_worst_entry_in_place_of_the_best_is_found(model: Any) -> None:
    with replayed.Replay(model, {}) as path:
        random_model.token_logprobs(model, TOKENS)
    scores = path.scores[INDEX][LENGTH - 2]
    worst, best = int(scores.masked_fill(future(), torch.inf).argmin()), int(scores.argmax())
    assert found_with(model, worst, best).words.startswith(f"takes {worst}, not {best}: ")


def future() -> torch.Tensor:
    """The entries [n] bool that are not complete at the token before the last."""
    return torch.arange(LENGTH // 4) >= (LENGTH - 1) // 4


@pytest.mark.parametrize(
    ("wrong", "words"), [(23, "takes 23 of 23"), (NONE, f"takes {CHOSEN - 1} of 23")]
)
def test_an_entry_of_the_future_and_one_too_few_are_found(
    model: Any, wrong: int, words: str
) -> None:
    assert found_with(model, wrong).words == words
