"""How far a device is from itself: what may differ between two runs of the same bits, measured before it is allowed."""

from __future__ import annotations

import math

import torch


def largest_difference(one: torch.Tensor, other: torch.Tensor, live: torch.Tensor) -> float:
    """The largest absolute difference of live rows; 0 for equal bits, inf where one is finite and the other is not.

    one, other: the same shape, dim 0 rows; live: [rows] bool. Integers that differ differ by inf: they are ids.
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


def is_within(difference: float, spread: float) -> bool:
    """Whether a difference is explained by a spread: a device that repeats its bits (spread 0) explains none."""
    return 0.0 < spread < math.inf and difference <= spread


def stated(name: str, difference: float, spread: float) -> str:
    """The sentence that goes with a comparison within a spread."""
    return (
        f"{name} is not bitwise repeatable here: two equal runs differ by up to {spread:.3g}, "
        f"and a difference of {difference:.3g} is within that"
    )
