"""The tests behind a verdict, all of them scipy's: Wilson, exact McNemar, a paired trend, and what could be seen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from harness.accuracy.records import Interval

POWER = 0.8


def wilson_interval(num_correct: int, num_questions: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a share; (0, 1) when nothing was asked."""
    if num_questions == 0:
        return (0.0, 1.0)
    found = stats.binomtest(num_correct, num_questions).proportion_ci(confidence, method="wilson")
    return (float(found.low), float(found.high))


def mcnemar_p(lost: int, gained: int) -> float:
    """Exact two-sided McNemar: as many questions lost as gained is what chance gives. 1 without a flip."""
    if lost + gained == 0:
        return 1.0
    return float(stats.binomtest(lost, lost + gained, 0.5).pvalue)


def trend_p(outcomes: Sequence[Sequence[bool]]) -> float:
    """Whether accuracy falls over the epochs: one-sided Wilcoxon signed-rank test on the questions' slopes.

    `outcomes[e][q]` tells whether question q was right in epoch e. The same questions are asked in each epoch, so
    that the epochs are not independent, as Cochran and Armitage's test takes them to be; a slope for each question,
    whose sign chance would toss, is the paired test. 1 with fewer than two epochs or without a slope.
    """
    table = np.asarray(outcomes, dtype=float)
    if table.ndim != 2 or table.shape[0] < 2 or table.shape[1] == 0:
        return 1.0
    epochs = np.arange(table.shape[0]) - (table.shape[0] - 1) / 2
    slopes = epochs @ table
    # Slopes are multiples of a half: exact ties are ties, and no rounding makes one of two equal slopes larger.
    if not np.any(slopes):
        return 1.0
    return float(stats.wilcoxon(slopes, alternative="less", zero_method="wilcox").pvalue)


def adjust(p_values: Sequence[float]) -> float | None:
    """The smallest p-value times their number (Bonferroni), at most 1; None of none."""
    return min(1.0, min(p_values) * len(p_values)) if p_values else None


def mcnemar_power(num_questions: int, drop: float, gain: float, alpha: float) -> float:
    """The chance that exact McNemar at `alpha` sees a loss of `drop`, when a share `gain` is gained by chance.

    Of each question, chance loses it with `drop + gain` and gains it with `gain`; the rest stays as it was.
    """
    lose = drop + gain
    discordant = min(1.0, lose + gain)
    if num_questions == 0 or discordant == 0:
        return 0.0
    flips = np.arange(1, num_questions + 1)
    # The fewest losses among so many flips that are significant: 2 P(X >= fewest) <= alpha.
    fewest = stats.binom.isf(alpha / 2, flips, 0.5) + 1
    seen = stats.binom.sf(fewest - 1, flips, lose / (lose + gain))
    return float(np.sum(stats.binom.pmf(flips, num_questions, discordant) * seen))


def smallest_drop(num_questions: int, accuracy: float, alpha: float, gained: int = 0) -> float | None:
    """The smallest drop in accuracy that would have been seen with 80 % power, in whole questions.

    `gained` is how many questions the run gained by chance against its reference. None: not even the loss of every
    right answer would have been seen.
    """
    if num_questions == 0:
        return None
    gain = gained / num_questions
    low, high = 0, round(accuracy * num_questions)
    if mcnemar_power(num_questions, high / num_questions, gain, alpha) < POWER:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if mcnemar_power(num_questions, middle / num_questions, gain, alpha) >= POWER:
            high = middle
        else:
            low = middle
    return high / num_questions
