"""What calls of several ops are asked: the place of a unit in its call, kinds of rows and of
scores. No torch here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from harness.core.conditions.model import Point
from harness.core.ops import PAGE_SIZE

# Below the 1.5e4 at which `large` scores are drawn.
LARGE_SCORE = 1e4
TILE = 16
"""Slots of the smallest tile in which kernels read a page."""
FAR = 2**31
"""The first offset in elements that does not fit a signed number of 32 bits."""
TYPES = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float8_e4m3fn": "fp8_e4m3"}
LARGE_ROW = 2.0**9
TINY_ROW = 2.0**-4
"""The largest element of a row from which it is large, and up to which it is tiny."""


def place_of(b: int, count: int) -> str:
    """Where unit b of a call is."""
    return "only" if count == 1 else "first" if b == 0 else "last" if b == count - 1 else "middle"


def around(b: int, live: Sequence[Any]) -> str:
    """Which neighbours of unit b are not live: 0 or False."""
    before = b > 0 and not live[b - 1]
    after = b + 1 < len(live) and not live[b + 1]
    return (
        "empty both"
        if before and after
        else "empty before"
        if before
        else "empty after"
        if after
        else "live"
    )


def same_as_before(b: int, units: Sequence[Any]) -> str | None:
    """Whether unit b is equal to the unit before it; None for the first."""
    return None if b == 0 else "equal" if units[b] == units[b - 1] else "other"


def end_in_page(slot: int, size: int = PAGE_SIZE) -> str:
    """Where a slot lies in its page of `size` slots."""
    return {0: "first", size - 1: "last"}.get(slot % size, "inner")


def order_of(numbers: Sequence[int]) -> str | None:
    """How numbers follow each other; None for fewer than two."""
    if len(numbers) < 2:
        return None
    if len(set(numbers)) < len(numbers):
        return "repeated"
    steps = {after > before for before, after in pairwise(numbers)}
    return "mixed" if len(steps) == 2 else "rising" if True in steps else "falling"


def shared_with(own: Sequence[int], holders: Mapping[int, int]) -> str | None:
    """Whether others hold what this unit holds; None for a unit without any."""
    if not own:
        return None
    others = sum(holders[one] > 1 for one in own)
    return "own" if not others else "all" if others == len(own) else "some"


def scores_of(scores: list[float]) -> str:
    """The kind of scores that a query has with its keys."""
    top = max(scores)
    if max(top, -min(scores)) >= LARGE_SCORE:
        return "large"
    if not any(scores):
        return "zero"
    if scores.count(top) > 1:
        return "ties"
    # One key outweighs the others if they have less than a thousandth of the weight together.
    total = sum(math.exp(score - top) for score in scores)
    return "one key" if len(scores) > 1 and total < 1.001 else "plain"


def row_values(largest: float) -> str:
    """The kind of a row by the magnitude of its largest element."""
    return (
        "zero"
        if largest == 0
        else "large"
        if largest >= LARGE_ROW
        else "tiny"
        if largest <= TINY_ROW
        else "plain"
    )


SEEN = ("all", "part")


def requests(lengths: Sequence[int], num_tokens: int) -> Iterator[Point]:
    """A point for each request: its place, its neighbours, and whether each of its query tokens
    sees a key.
    """
    for b, length in enumerate(lengths):
        yield {
            "batch": len(lengths),
            "queries": num_tokens,
            "place": place_of(b, len(lengths)),
            "around": around(b, lengths),
            "neighbour": same_as_before(b, lengths),
            "seen": SEEN[length < num_tokens] if length else None,
        }


def of_records(cache: Any, record_format: str) -> Point:
    """The classes of a cache [N, P, Y] (uint8) of records: their format, and whether layers share
    blocks.

    The pages of a cache of one layer lie one behind the other.
    """
    page = cache.shape[1] * cache.shape[2]
    return {"kv": record_format, "layers": "one" if cache.stride(0) == page else "several"}


def end_of(length: int) -> str:
    """Where a request ends in its last page. `last`: it is one token short of a whole page."""
    found = end_in_page(length - 1) if length else "empty"
    return "whole" if found == "last" else "last" if length % PAGE_SIZE == PAGE_SIZE - 1 else found
