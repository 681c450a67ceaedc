"""Two runs are compared up to the decision on which they part, and the margin tells whether
rounding explains it.
"""

from __future__ import annotations

import math

import pytest
import torch

from harness.evidence.decisions import Decisions, rows_before_divergence, shortfall
from tests.transcripts import Approved


def decisions(
    selected: list[list[int]],
    experts: list[list[int]],
    tokens: list[int],
    below: tuple[float, float] = (0.01, 0.02),
    token_below: float = 0.0,
) -> Decisions:
    """A request with a prompt of two tokens, one sparse layer and one router; four positions in the
    cache.
    """
    return Decisions(
        request=0,
        num_prompt_tokens=2,
        tokens=tokens,
        layers=["selection", "router"],
        choices=[torch.tensor(selected), torch.tensor(experts)],
        shortfalls=[torch.full((4,), value) for value in below],
        margin=0.05,
        token_shortfalls=torch.full((3,), token_below),
        token_margins=torch.full((3,), 0.3),
    )


SELECTED, EXPERTS, TOKENS = [[0, -1], [0, 1], [0, 1], [1, 2]], [[0, 1]] * 4, [5, 6, 7]
BASE = decisions(SELECTED, EXPERTS, TOKENS)


def changed(rows: list[list[int]], position: int, value: list[int]) -> list[list[int]]:
    return [*rows[:position], value, *rows[position + 1 :]]


def test_equal_decisions_have_no_divergence() -> None:
    rows, divergences = rows_before_divergence((BASE, BASE), (BASE, BASE))
    assert divergences == [] and rows.tolist() == [True] * 6


@pytest.mark.parametrize(("position", "row"), [(0, 0), (1, 0), (2, 1), (3, 2)])
def test_rows_from_the_position_of_the_decision_on_are_left_out(
    position: int, row: int, approved: Approved
) -> None:
    other = decisions(changed(SELECTED, position, [7, 8]), EXPERTS, TOKENS)
    rows, (divergence,) = rows_before_divergence((BASE,), (other,))
    assert divergence.row == row and rows.tolist() == [index < row for index in range(3)]
    approved(divergence.what)
    assert not divergence.is_beyond_rounding


def test_the_first_decision_is_named_layers_before_the_token_of_their_position(
    approved: Approved,
) -> None:
    other = decisions(SELECTED, changed(EXPERTS, 2, [0, 3]), [5, 9, 7])
    divergence = BASE.divergence(other)
    assert divergence is not None and divergence.row == 1
    approved(divergence.what)
    both = decisions(changed(SELECTED, 2, [0, 9]), changed(EXPERTS, 2, [0, 3]), [5, 9, 7])
    divergence = BASE.divergence(both)
    assert divergence is not None
    approved(divergence.what)


def test_a_row_that_gave_another_token_is_compared_and_later_rows_are_not(
    approved: Approved,
) -> None:
    divergence = BASE.divergence(decisions(SELECTED, EXPERTS, [5, 9, 7], token_below=0.2))
    assert divergence is not None and divergence.row == 2
    assert not divergence.is_beyond_rounding
    approved(divergence.what)


@pytest.mark.parametrize("below", [0.06, math.inf, math.nan])
def test_a_choice_that_scores_too_far_below_is_beyond_rounding(below: float) -> None:
    other = decisions(changed(SELECTED, 3, [0, 1]), EXPERTS, TOKENS, below=(below, 0.0))
    divergence = BASE.divergence(other)
    assert divergence is not None and divergence.is_beyond_rounding
    token = BASE.divergence(decisions(SELECTED, EXPERTS, [5, 6, 8], token_below=0.4))
    assert token is not None and token.is_beyond_rounding


def test_the_shortfall_is_the_best_left_out_less_the_least_taken() -> None:
    scores = torch.tensor([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0], [1.0, 1.0, 1.0]])
    taken = torch.tensor([[True, False, True], [False, True, True], [True, True, True]])
    assert shortfall(scores, taken).tolist() == [-1.0, 2.0, -math.inf]
