from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from harness.accuracy.judge import (
    POWER,
    adjust,
    mcnemar_p,
    mcnemar_power,
    smallest_drop,
    trend_p,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("correct", "asked", "low", "high"),
    [
        # Newcombe (1998), Statistics in Medicine 17, table I, method 3.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_interval_agrees_with_the_published_table(
    correct: int, asked: int, low: float, high: float
) -> None:
    assert wilson_interval(correct, asked) == pytest.approx((low, high), abs=5e-5)


def test_wilson_interval_of_nothing_is_everything() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("lost", "gained", "p"),
    # 2 * (1/2)**6; 2 * (1 + 10 + 45) / 2**10; a tie; both by hand.
    [(6, 0, 0.03125), (8, 2, 0.109375), (5, 5, 1.0), (0, 0, 1.0), (0, 6, 0.03125)],
)
def test_mcnemar_is_the_exact_binomial_test_of_the_flips(lost: int, gained: int, p: float) -> None:
    assert mcnemar_p(lost, gained) == pytest.approx(p)


def test_a_trend_of_five_falling_questions_has_the_exact_p_value_of_five_tosses() -> None:
    outcomes = [[True] * 5, [False] * 5]
    assert trend_p(outcomes) == pytest.approx(1 / 32)


def test_a_rising_accuracy_is_no_falling_trend() -> None:
    assert trend_p([[False] * 5, [True] * 5]) == pytest.approx(1.0)


@pytest.mark.parametrize("outcomes", [[], [[True, False]], [[True, False]] * 4, [[], []]])
def test_without_two_epochs_or_any_slope_there_is_no_trend(outcomes: list[list[bool]]) -> None:
    assert trend_p(outcomes) == 1.0


def test_a_collapse_over_three_epochs_is_a_trend_beyond_doubt() -> None:
    chance = np.random.default_rng(0)
    outcomes = [list(chance.random(300) < share) for share in (0.9075, 0.7096, 0.0136)]
    assert trend_p(outcomes) < 1e-30


def test_the_trend_test_raises_a_false_alarm_about_as_often_as_it_says() -> None:
    chance = np.random.default_rng(1)
    alarms = [trend_p(list(chance.random((5, 60)) < 0.5)) < 0.05 for _ in range(400)]
    # 20 expected; a binomial of 400 and 0.05 exceeds 35 once in a thousand.
    assert sum(alarms) <= 35


def test_adjusting_multiplies_the_smallest_p_value_by_their_number() -> None:
    assert adjust([0.2, 0.01, 0.5]) == pytest.approx(0.03)
    assert adjust([0.9, 0.8]) == 1.0
    assert adjust([]) is None


@pytest.mark.nightly
def test_power_agrees_with_simulated_runs() -> None:
    chance = np.random.default_rng(2)
    asked, drop, gain, alpha = 100, 0.10, 0.02, 0.05
    draws = chance.multinomial(asked, [drop + gain, gain, 1 - drop - 2 * gain], size=4000)
    seen = [
        mcnemar_p(int(lost), int(gained)) <= alpha and lost > gained for lost, gained, _ in draws
    ]
    assert mcnemar_power(asked, drop, gain, alpha) == pytest.approx(np.mean(seen), abs=0.025)


def test_power_without_background_flips_is_a_binomial_tail() -> None:
    # With losses alone, six are the fewest that are significant at 0.05.
    assert mcnemar_power(50, 0.2, 0.0, 0.05) == pytest.approx(float(stats.binom.sf(5, 50, 0.2)))


def test_the_smallest_drop_is_the_first_with_enough_power() -> None:
    found = smallest_drop(1319, 0.9985, 0.05 / 6)
    assert found is not None
    assert (
        mcnemar_power(1319, found, 0.0, 0.05 / 6)
        >= POWER
        > mcnemar_power(1319, found - 1 / 1319, 0.0, 0.05 / 6)
    )
    assert 0.005 < found < 0.012


def test_a_run_too_small_to_see_any_drop_says_so() -> None:
    assert smallest_drop(5, 1.0, 0.05) is None
    assert smallest_drop(0, 0.0, 0.05) is None
    assert smallest_drop(1000, 0.002, 0.05) is None


def test_background_flips_make_the_smallest_visible_drop_larger() -> None:
    quiet, noisy = smallest_drop(500, 0.9, 0.05), smallest_drop(500, 0.9, 0.05, gained=20)
    assert quiet is not None and noisy is not None and noisy > quiet
