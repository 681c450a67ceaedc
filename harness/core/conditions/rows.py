"""A space of conditions from its rows in YAML.

A row of `conditions.yaml` of an op, or of `engine.yaml`, has these keys:

- `units`: the dimension that counts the units of a call. A dimension `place` goes with it.
- `previous`: dimensions that compare a unit with the one before. The first unit has no class there.
- `empty`: dimension -> its class of a unit without keys.
- `optional`: dimensions in which a unit may have no class.
- `dimensions`: `is` says what a dimension is. `classes` are its classes, or a mapping from each
  class to parameters that show it, or to a list of several such. `from` has the first number of
  each class: `1 2 17` are 1, 2-16 and 17+; 0 is called none. `param` is the parameter with the
  number, or with the name of the class. `words` are the optional keywords of the kernel that every
  call of a class has. `reach` is a number that released models have; some shipped call has as much.
- `never`: reason -> combinations of classes that no legal call has. `any` is each class of a
  dimension, `but` each other class. A rule holds for each item of `either`, and for each dimension
  in `each`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from harness.core.conditions.model import Dimension, Never, Point, Space

Given = Mapping[str, Any]
"""Dimension -> its classes in a rule: one, a list of them, `any`, or all `but` some."""


def space_of(op: str, row: Given, reader: Callable[..., Iterable[Point]]) -> Space:
    """The space of a row. `reader` reads the points of a call."""
    dimensions = {name: _dimension(name, **given) for name, given in row["dimensions"].items()}
    units = row.get("units", "")
    rules = [(why, given) for why, several in row["never"].items() for given in several]
    if units:
        # Rules that follow from what a place is stand in no table.
        rules = [*_of_places(units, row), *rules]
    return Space(
        op=op,
        dimensions=tuple(dimensions.values()),
        rules=tuple(rule for why, given in rules for rule in _nevers(why, given, dimensions)),
        reader=reader,
        optional=frozenset(row.get("optional", ())),
        units=units,
    )


def _dimension(
    name: str, *, classes: Any = (), param: str = "", words: Given | None = None, **given: Any
) -> Dimension:
    numbers = _numbers(given["from"]) if "from" in given else {}
    labels = tuple(map(str, classes or numbers))
    examples = {}
    if isinstance(classes, dict):
        examples = {
            # An empty list: the class has no example, for example because several units decide it
            # together.
            str(label): tuple(_listed(shown))
            for label, shown in classes.items()
            if shown != []
        }
    elif param and not numbers:
        examples = {label: ({param: label.replace(" ", "_")},) for label in labels}
    return Dimension(
        name,
        labels,
        given["is"],
        examples,
        numbers,
        param if numbers else "",
        words or {},
        given.get("reach", 0),
    )


def _numbers(starts: str | dict[str, int]) -> dict[str, range]:
    """Classes of numbers, by the first number of each."""
    # A table gives the first number of each class, and may give names as well.
    firsts = (
        list(starts.values())
        if isinstance(starts, dict)
        else [int(start) for start in starts.split()]
    )
    # The last class has no end: no number of a call is so large.
    ranges = [range(first, after or 2**31) for first, after in pairwise([*firsts, 0])]
    return dict(
        zip(starts if isinstance(starts, dict) else map(_label, ranges), ranges, strict=True)
    )


def _label(numbers: range) -> str:
    if numbers.stop == 2**31:
        return f"{numbers.start}+"
    if len(numbers) > 1:
        return f"{numbers.start}-{numbers.stop - 1}"
    return str(numbers.start or "none")


def _of_places(units: str, row: Given) -> Iterator[tuple[str, Given]]:
    """What follows from the place of a unit, and from its neighbours."""
    yield "one unit has one place", {units: 1, "place": {"but": "only"}}
    yield "one unit has one place", {units: {"but": 1}, "place": "only"}
    if previous := row.get("previous"):
        first = [{units: 1}, {"place": ["only", "first"]}]
        yield "nothing is before it", {"either": first, "each": dict.fromkeys(previous, "any")}
    before = ["empty before", "empty both"]
    behind = ["empty after", "empty both"]
    if "around" in row["dimensions"]:
        yield "nothing is before it", {"place": ["only", "first"], "around": before}
        yield "nothing is behind it", {"place": ["only", "last"], "around": behind}
        yield "nothing is beside it", {units: 1, "around": {"but": "live"}}
    for name, empty in row.get("empty", {}).items():
        why = "of two equal neighbours both are empty, or none is"
        yield why, {"around": before, "neighbour": "equal", name: {"but": empty}}
        yield why, {"around": before, "neighbour": "other", name: empty}
        yield why, {"around": ["live", "empty after"], "neighbour": "equal", name: empty}


def _nevers(why: str, given: Given, dimensions: Mapping[str, Dimension]) -> Iterator[Never]:
    """The rules of one row: for each item of `either`, and for each dimension in `each`."""
    shared = {name: classes for name, classes in given.items() if name not in ("either", "each")}
    for either in given.get("either", [{}]):
        for one in [{name: classes} for name, classes in given.get("each", {}).items()] or [{}]:
            found = shared | either | one
            yield Never(
                {name: _classes(dimensions[name], classes) for name, classes in found.items()}, why
            )


def _classes(dimension: Dimension, given: Any) -> tuple[str, ...]:
    if given == "any":
        return dimension.classes
    if isinstance(given, dict):
        without = _classes(dimension, given["but"])
        return tuple(label for label in dimension.classes if label not in without)
    return tuple(map(str, _listed(given)))


def _listed(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]
