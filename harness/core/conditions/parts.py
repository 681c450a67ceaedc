"""What the conditions of several ops have in common: classes of numbers, the place of a unit in its call, kinds of rows
and of scores. Tensors are read by their methods: no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from harness.core.conditions.model import Dimension, Never
from harness.core.ops import PAGE_SIZE

LARGE_SCORE = 1e4
FAR = 2**31
"""The first offset in elements that does not fit a signed number of 32 bits."""
TYPES = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float8_e4m3fn": "fp8_e4m3"}
LARGE_ROW, TINY_ROW = 2.0**9, 2.0**-4
"""The largest element of a row from which it is large, and up to which it is tiny."""
ROW_VALUES = ("plain", "zero", "tiny", "large")
SCORES = ("plain", "zero", "ties", "one key", "large")
PLACES = ("only", "first", "middle", "last")
AROUND = ("live", "empty before", "empty after", "empty both")
BEFORE, BEHIND = ("empty before", "empty both"), ("empty after", "empty both")
ENDS = ("first", "inner", "last")
SCORE_EXAMPLES = {label: ({"values": label.replace(" ", "_")},) for label in SCORES}
ROW_EXAMPLES = {label: ({"values": label},) for label in ROW_VALUES}


def numbers_of(starts: str) -> dict[str, range]:
    """Classes of numbers, by the first number of each: `1 2 16` has 1, 2-15 and 16+. 0 is `none`."""
    firsts = [int(start) for start in starts.split()]
    numbers = {}
    for first, after in pairwise([*firsts, 0]):
        label = f"{first}+" if not after else str(first) if after == first + 1 else f"{first}-{after - 1}"
        numbers["none" if label == "0" else label] = range(first, after or 2**31)
    return numbers


def ranged(name: str, summary: str, starts: str, param: str = "") -> Dimension:
    """A dimension of :func:`numbers_of`."""
    numbers = numbers_of(starts)
    return Dimension(name, tuple(numbers), summary, numbers=numbers, param=param)


def heads() -> Dimension:
    """The classes of numbers of heads."""
    return ranged("heads", "heads of the query", "1 2 17 128", "num_heads")


def choice(name: str, summary: str, param: str, **values: Any) -> Dimension:
    """A dimension of one parameter of the call: class -> the value that shows it."""
    return Dimension(name, tuple(values), summary, {label: ({param: value},) for label, value in values.items()})


def place_of(b: int, count: int) -> str:
    """Where unit b of a call is."""
    return "only" if count == 1 else "first" if b == 0 else "last" if b == count - 1 else "middle"


def around(b: int, live: Sequence[Any]) -> str:
    """Which neighbours of unit b are not live: 0 or False."""
    before, after = b > 0 and not live[b - 1], b + 1 < len(live) and not live[b + 1]
    return "empty both" if before and after else "empty before" if before else "empty after" if after else "live"


def same_as_before(b: int, units: Sequence[Any]) -> str | None:
    """Whether the unit before is equal."""
    return None if b == 0 else "equal" if units[b] == units[b - 1] else "other"


def end_in_page(slot: int, size: int = PAGE_SIZE) -> str:
    """Where a slot lies in its page."""
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
    total = sum(math.exp(score - top) for score in scores)
    return "one key" if len(scores) > 1 and total < 1.001 else "plain"


def row_values(largest: float) -> str:
    """The kind of a row by the magnitude of its largest element."""
    return "zero" if largest == 0 else "large" if largest >= LARGE_ROW else "tiny" if largest <= TINY_ROW else "plain"


def places() -> Dimension:
    return Dimension("place", PLACES, "place in the batch")


def neighbours_empty() -> Dimension:
    return Dimension("around", AROUND, "empty neighbours")


def batch_rules(
    count: Dimension, before: Mapping[str, Sequence[str]] | None = None, *, has_around: bool = False
) -> tuple[Never, ...]:
    """What follows from the place of a unit in a call of `count` units. `before`: classes that need a unit before."""
    one, more = count.classes[:1], count.classes[1:]
    found = [
        Never({count.name: one, "place": PLACES[1:]}, "one unit has one place"),
        Never({count.name: more, "place": ("only",)}, "one unit has one place"),
    ]
    for name, labels in (before or {}).items():
        found.append(Never({count.name: one, name: labels}, "nothing is before it"))
        found.append(Never({"place": ("only", "first"), name: labels}, "nothing is before it"))
    if has_around:
        found += [
            Never({"place": ("only", "first"), "around": BEFORE}, "nothing is before it"),
            Never({"place": ("only", "last"), "around": BEHIND}, "nothing is behind it"),
            Never({count.name: one, "around": AROUND[1:]}, "nothing is beside it"),
        ]
    return tuple(found)


def none_of(name: str, labels: Sequence[str], why: str, **classes: Sequence[str]) -> tuple[Never, ...]:
    """`labels` of `name` have none of the classes of other dimensions."""
    return tuple(Never({name: labels, other: found}, why) for other, found in classes.items())


def equal_rules(name: str, empty: str, live: Sequence[str]) -> tuple[Never, ...]:
    """Of two equal neighbours both are empty, or none is: class `empty` and classes `live` of dimension `name`."""
    why = "of two equal neighbours both are empty, or none is"
    return (
        Never({"around": BEFORE, "neighbour": ("equal",), name: live}, why),
        Never({"around": BEFORE, "neighbour": ("other",), name: (empty,)}, why),
        Never({"around": ("live", "empty after"), "neighbour": ("equal",), name: (empty,)}, why),
    )
