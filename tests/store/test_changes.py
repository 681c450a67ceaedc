"""A step in a series is marked where it is, and noise is not."""

from __future__ import annotations

import random

import pytest

from harness.store.history.changes import FEWEST, change_points

NOISE = 0.008
"""Of the accuracy of 1,319 questions at 0.91: sqrt(0.91 * 0.09 / 1319)."""


def series(seed: int, step: float, at: int = 18, count: int = 30) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(0.91 - step * (place >= at), NOISE) for place in range(count)]


@pytest.mark.parametrize("seed", range(20))
def test_a_loss_of_four_percent_is_marked_at_its_run(seed: int) -> None:
    places = change_points(series(seed, 0.04), 0.02)
    assert any(abs(place - 18) <= 1 for place in places)


@pytest.mark.nightly
def test_noise_alone_is_marked_in_few_series() -> None:
    marked = sum(bool(change_points(series(seed, 0.0), 0.0)) for seed in range(200))
    assert 0 < marked <= 20, "at least one: else the search could see nothing at all"


def test_a_step_below_what_is_worth_a_mark_is_none() -> None:
    assert not change_points([1.0] * 10 + [0.985] * 10, 0.02)


def test_a_series_without_noise_has_its_step() -> None:
    assert change_points([1.0] * 7 + [0.02] * 5, 0.02) == [7]


def test_one_bad_run_is_no_level() -> None:
    assert not change_points([1.0] * 6 + [0.5] + [1.0] * 6, 0.02)


def test_a_short_series_has_none() -> None:
    assert not change_points(([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])[: FEWEST - 1], 0.02)
