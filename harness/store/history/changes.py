"""Where a series of numbers changes its level: the run after which accuracy or time was another.

The search is PELT of the package `ruptures` (Killick, Fearnhead and Eckley 2012,
doi:10.1080/01621459.2012.737745).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from harness.core.extras import numpy, ruptures

FEWEST = 6
"""Numbers in a series at least: a level of one or two runs is an outlier."""
MIN_RUNS = 2
"""Runs of a level at least. One bad night is seen by its verdict."""
PENALTY = 4.0
"""Times variance and log n: what one more level must explain. Over 300 series of 30 runs of normal
noise, 4 marks a level in 4 % of those without one, and finds a step of four standard deviations in
98 %; 3 marks 7 %.
"""


def level_before(values: Sequence[float], places: Sequence[int], place: int) -> float:
    """The median of `values` from the change before `place`, one of `places`, up to it."""
    start = max((other for other in places if other < place), default=0)
    return median(values[start:place])


def level_after(values: Sequence[float], places: Sequence[int], place: int) -> float:
    """The median of `values` from the change at `place`, one of `places`, up to the next one."""
    end = min((other for other in places if other > place), default=len(values))
    return median(values[place:end])


def change_points(values: Sequence[float], least: float) -> list[int]:
    """The places in `values` at which a new level begins.

    `least` is the smallest step that is worth a mark, in the unit of `values`. Raises
    MissingPackage without ruptures.
    """
    if len(values) < FEWEST:
        return []
    # One bad run between two good ones is an outlier, not a level: its median is a good one.
    padded = [values[0], *values, values[-1]]
    signal = numpy.asarray([median(padded[at : at + 3]) for at in range(len(values))], dtype=float)
    # Steps from run to run, as a level that changed would widen the spread of the values
    # themselves. 1.05 = 1 / (0.6745 sqrt 2): the median of |a - b| of two normal values.
    noise = 1.05 * median(abs(b - a) for a, b in pairwise(values))
    # A series without noise has no variance to pay with; half of the least step is too little to
    # make a level.
    variance = max(noise, least / 4) ** 2
    search = ruptures.Pelt(model="l2", min_size=MIN_RUNS, jump=1).fit(signal)
    ends = search.predict(pen=PENALTY * variance * math.log(len(values)))
    starts = [0, *ends[:-1]]
    means = [float(signal[a:b].mean()) for a, b in zip(starts, ends, strict=True)]
    steps = zip(starts[1:], means, means[1:], strict=False)
    return [place for place, before, after in steps if abs(after - before) >= least]
