"""The spread of a device that may not repeat its bits: the measured difference of two equal runs."""

from __future__ import annotations

import math

import torch


def largest_difference(one: torch.Tensor, other: torch.Tensor, live: torch.Tensor) -> float:
    """The largest absolute difference of live rows: 0 for equal bits, inf if only one value is finite.

    one, other: the same shape, dim 0 rows; live: [rows] bool. Integers are ids: unequal ones differ by inf.
    """
    if one.shape != other.shape or one.dtype != other.dtype:
        return math.inf
    mine, theirs = one[live], other[live]
    if not one.dtype.is_floating_point:
        return 0.0 if torch.equal(mine, theirs) else math.inf
    mine, theirs = mine.to(torch.float64), theirs.to(torch.float64)
    same = (mine == theirs) | (mine.isnan() & theirs.isnan())
    difference = torch.where(same, torch.zeros_like(mine), (mine - theirs).abs())
    if not difference.numel():
        return 0.0
    return float(difference.nan_to_num(nan=math.inf, posinf=math.inf).max())


def explanation(name: str, difference: float, spread: float) -> str | None:
    """A sentence if the spread covers the difference, else None. A device that repeats its bits has a spread of 0."""
    if not (0.0 < spread < math.inf and difference <= spread):
        return None
    return (
        f"{name} is not bitwise repeatable here: two equal runs differ by up to {spread:.3g}, "
        f"and a difference of {difference:.3g} is within that"
    )
