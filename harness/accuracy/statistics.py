"""The statistics behind a verdict, from scipy: Wilson's interval, exact McNemar, a paired trend, and power."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from scipy import stats

from harness.core.records import Interval

POWER = 0.8


def wilson_interval(num_correct: int, num_questions: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a share; (0, 1) without questions."""
    if num_questions == 0:
        return (0.0, 1.0)
    found = stats.binomtest(num_correct, num_questions).proportion_ci(confidence, method="wilson")
    return (float(found.low), float(found.high))


def mcnemar_p(lost: int, gained: int) -> float:
    """Exact two-sided McNemar test: chance loses as many questions as it gains. 1 without a flip."""
    if lost + gained == 0:
        return 1.0
    return float(stats.binomtest(lost, lost + gained, 0.5).pvalue)


def trend_p(outcomes: Sequence[Sequence[bool]]) -> float:
    """P-value of falling accuracy: one-sided Wilcoxon signed-rank test on the questions' slopes over the epochs.

    `outcomes[e][q]` is true when question q was right in epoch e. Epochs share their questions, so they are not
    independent, which Cochran and Armitage's test would need. The test is paired: by chance, a question's slope falls
    as often as it rises. 1 with fewer than two epochs or without a slope.
    """
    table = np.asarray(outcomes, dtype=float)
    if table.ndim != 2 or table.shape[0] < 2 or table.shape[1] == 0:
        return 1.0
    epochs = np.arange(table.shape[0]) - (table.shape[0] - 1) / 2
    slopes = epochs @ table
    # Slopes are multiples of a half, so equal slopes are exactly equal.
    if not np.any(slopes):
        return 1.0
    return float(stats.wilcoxon(slopes, alternative="less", zero_method="wilcox").pvalue)


def adjust(p_values: Sequence[float]) -> float | None:
    """The smallest p-value times their number (Bonferroni), at most 1; None without p-values."""
    return min(1.0, min(p_values) * len(p_values)) if p_values else None


def mcnemar_power(num_questions: int, drop: float, gain: float, alpha: float) -> float:
    """The probability that exact McNemar at `alpha` detects a loss of the share `drop`.

    Each question is lost with probability `drop + gain` and gained with probability `gain`.
    """
    lose = drop + gain
    discordant = min(1.0, lose + gain)
    if num_questions == 0 or discordant == 0:
        return 0.0
    flips = np.arange(1, num_questions + 1)
    # The fewest losses that are significant among each number of flips: 2 P(X >= fewest) <= alpha.
    fewest = stats.binom.isf(alpha / 2, flips, 0.5) + 1
    seen = stats.binom.sf(fewest - 1, flips, lose / (lose + gain))
    return float(np.sum(stats.binom.pmf(flips, num_questions, discordant) * seen))


def smallest_drop(num_questions: int, accuracy: float, alpha: float, gained: int = 0) -> float | None:
    """The smallest drop in accuracy, in whole questions, that the test detects with 80 % power.

    `gained` is the number of questions that the run gained against its reference. None when the test would not detect
    even the loss of every right answer.
    """
    if num_questions == 0:
        return None
    gain = gained / num_questions
    drops = [lost / num_questions for lost in range(1, round(accuracy * num_questions) + 1)]
    found = bisect_left(drops, POWER, key=lambda drop: mcnemar_power(num_questions, drop, gain, alpha))
    return drops[found] if found < len(drops) else None
