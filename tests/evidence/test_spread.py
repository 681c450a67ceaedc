"""A difference is excused by what two equal runs differ by, and by nothing else."""

from __future__ import annotations

import math

import torch

from harness.evidence.compare import explanation, largest_difference
from tests.transcripts import Approved

LIVE = torch.tensor([True, True, False])


def test_equal_bits_have_no_spread_whatever_stands_in_dead_rows() -> None:
    one, other = torch.ones(3, 2), torch.ones(3, 2)
    other[2] = 9.0
    one[0, 0] = other[0, 0] = math.nan
    assert largest_difference(one, other, LIVE) == 0.0


def test_the_spread_is_the_largest_difference_of_live_rows() -> None:
    one, other = torch.zeros(3, 2), torch.zeros(3, 2)
    other[0, 1], other[1, 0] = 0.25, -0.5
    assert largest_difference(one, other, LIVE) == 0.5


def test_a_value_beside_a_nan_or_an_infinity_differs_without_bound() -> None:
    one = torch.zeros(3, 2)
    for odd in (math.nan, math.inf):
        other = one.clone()
        other[1, 1] = odd
        assert largest_difference(one, other, LIVE) == math.inf


def test_ids_that_differ_are_no_rounding() -> None:
    one = torch.tensor([[1], [2], [3]])
    assert largest_difference(one, one + torch.tensor([[0], [0], [1]]), LIVE) == 0.0
    assert largest_difference(one, one + 1, LIVE) == math.inf


def test_other_shapes_and_types_are_no_rounding() -> None:
    assert largest_difference(torch.ones(3, 2), torch.ones(3, 3), LIVE) == math.inf
    assert (
        largest_difference(torch.ones(3, 2), torch.ones(3, 2, dtype=torch.float64), LIVE)
        == math.inf
    )


def test_a_device_that_repeats_its_bits_explains_nothing() -> None:
    assert explanation("out", 1e-9, 0.0) is None
    assert explanation("out", 1e-9, math.inf) is None


def test_a_difference_within_the_spread_is_explained_with_both_numbers(approved: Approved) -> None:
    assert explanation("out", 1e-9, 1e-9)
    assert explanation("out", 2e-9, 1e-9) is None
    approved(explanation("out", 1e-4, 2e-4))
