"""The draw of a call of any op from its conditions: parameters of the call, and of each of its
unlike units.

What shows a class is read from the dimensions. A class that several units decide together, such as
a place or an equal neighbour, is arranged here.
"""

from __future__ import annotations

import base64
import functools
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from random import Random
from typing import Any

from pydantic import ValidationError

from harness.core.conditions.model import Combination, Dimension, Space
from harness.core.conditions.table import SPACES, key_of
from harness.core.draws import Draws, Given, Wanted, draws
from harness.core.op_params import KERNEL_PARAMS
from harness.core.ops import OPS_FOLDER, PAGE_SIZE

UNMET = "unmet_triples.json"
"""A file of an op: the mark of its classes -> a bit for each triple, in order.

It is written with the array of its calls.
"""

RARE = 0.6
"""How often a unit of a random call wants a triple that no array shows."""
MOST_DRAWN = 9
"""Units of a random call."""
MOST_CYCLED = 13
"""Words of a list that is repeated for more units."""


def call_of_conditions(random: Random, op: str, kernel: str) -> Given:
    """The parameters of a small call with units of drawn triples of classes."""
    wanted = iter(lambda: _triple(random, op), None)
    given = drawn_call(op, random, wanted, MOST_DRAWN)
    return {"kernel": kernel} | draws()[op].limited(given)


def _triple(random: Random, op: str) -> Wanted:
    """Classes of three dimensions that go together, most often three that no shipped call shows
    together.
    """
    space = SPACES[op]
    if random.random() < RARE and (rare := _unmet(op)):
        return dict(random.choice(rare))
    while True:
        found = [(d.name, random.choice(d.classes)) for d in random.sample(space.dimensions, 3)]
        if not space.why_not(found):
            return dict(found)


@functools.cache
def _unmet(op: str) -> list[Combination]:
    """The triples that no call of the op's array shows."""
    file = OPS_FOLDER / op / UNMET
    found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    packed = found.get(key_of(SPACES[op]), "")
    flags = zlib.decompress(base64.b64decode(packed)) if packed else b""
    of_flag = zip(
        SPACES[op].combinations(3),
        (byte >> n & 1 for byte in flags for n in range(8)),
        # The flags fill whole bytes, so the last ones stand for no triple.
        strict=False,
    )
    return [one for one, is_unmet in of_flag if is_unmet]


def drawn_call(
    op: str, random: Random, wanted: Iterator[Wanted], largest: int | None = None
) -> Given:
    """The parameters of a call of `op` with at most `largest` units; of None, as many as its calls
    have at most.

    The first of `wanted` decides what all units share, and each unit takes one that goes with that.
    """
    space, how, model = SPACES[op], draws()[op], KERNEL_PARAMS[op]
    largest = how.most_units if largest is None else largest
    if how.call is not None:
        return how.call(random, wanted, largest)
    plain = model().model_dump()
    first = next(wanted)
    given: Given = {}
    units: list[Given] = []
    for d in space.dimensions:
        if not _is_of_unit(d, plain) and (
            shows := d.shown_by(first.get(d.name) or _label(random, d, how))
        ):
            given |= _nearest(random, shows)
    counted = space[space.units]
    count = given.get(counted.param) or random.choice(
        # The last class of a number has no end.
        counted.numbers[first.get(counted.name) or _label(random, counted, how)][:64]
    )
    count = min(count, largest)
    if first.get("place") in ("middle", "last") and count < 3:
        # A unit in the middle has one before it and one behind it.
        count = 3 if counted.name not in first else count
    if "num_tokens" in plain and counted.name == "tokens":
        given["num_tokens"] = count
    elif counted.name == "experts" and "num_experts" in plain:
        given["num_experts"] = count
    requests = [first, *islice(wanted, min(count, 128) - 1)]
    # The first wish decided what all units share. It is met by the unit whose place it names.
    place = {"last": count - 1, "middle": count // 2}.get(first.get("place", ""), 0)
    if place < len(requests):
        requests[0], requests[place] = requests[place], requests[0]
    for want in requests:
        unit: Given = {}
        for d in space.dimensions:
            shows = (
                d.shown_by(want.get(d.name) or _label(random, d, how))
                if _is_of_unit(d, plain)
                else ()
            )
            # Two dimensions may be shown by one parameter. The class that the unit wants keeps it.
            if shows and (d.name in want or not set(shows[0]) & set(unit)):
                unit |= random.choice(shows)
        units.append(unit)
    # The number of pages and the end in the last page are both decided by the length.
    if "seq_lens" in how.lists and "end" in {d.name for d in space.dimensions}:
        for unit, want in zip(units, requests, strict=True):
            unit["seq_lens"] = _length(random, space, want)
    _beside(random, how, requests, units)
    for name in sorted({name for unit in units for name in unit}):
        values = [unit[name] for unit in units if name in unit]
        given[name] = values if name in how.lists else values[:MOST_CYCLED]
    how.settle(random, given, first)
    try:
        return model.model_validate(model.settled(plain | given)).model_dump(include=set(given))
    # No legal call has these classes. The next of `wanted` make another one.
    except ValidationError:
        return drawn_call(op, random, wanted, largest)


def _is_of_unit(d: Dimension, plain: Given) -> bool:
    """Whether parameters of one unit show the classes of a dimension: their values are entries of
    lists.
    """
    names = (
        {d.param}
        if d.param
        else {name for shows in d.examples.values() for example in shows for name in example}
    )
    return any(isinstance(plain.get(name), tuple) for name in names)


def _label(random: Random, d: Dimension, how: Draws) -> str:
    """A class of a dimension, drawn by the weights that the op gives them."""
    return random.choices(d.classes, how.weights.get(d.name))[0]


def _nearest(random: Random, shows: Sequence[Mapping[str, Any]]) -> Given:
    """One of the parameters that show a class: more often one of the first, which are small."""
    return dict(shows[min(int(random.expovariate(0.3)), len(shows) - 1)])


def _beside(random: Random, how: Draws, requests: Sequence[Wanted], units: list[Given]) -> None:
    """Give the neighbours of each unit what it wants: that they are empty, or equal to it."""
    for b, want in enumerate(requests):
        around = want.get("around", "")
        neighbour = want.get("neighbour", "")
        if how.empty and around in ("empty before", "empty both") and b:
            units[b - 1] |= how.empty
        if how.empty and around in ("empty after", "empty both") and b + 1 < len(units):
            units[b + 1] |= how.empty
        equal = neighbour == "equal" or (not neighbour and not want and random.random() < 0.2)
        if equal and b:
            same = {name: units[b][name] for name in how.lists if name in units[b]}
            if around == "live" or any(same.values()):
                units[b - 1] |= same


def _length(random: Random, space: Space, want: Wanted) -> int:
    """The length of a request with the number of pages, and the end, that it wants."""
    if (
        want.get("end") == "empty"
        or want.get("pages") == "none"
        or (not want and random.random() < 0.15)
    ):
        return 0
    # An order needs two pages and a mixed one three. Of `some` shared pages one is the request's
    # own.
    least = {"mixed": "3-4"}.get(
        want.get("order", ""), "2" if "order" in want or want.get("shared") == "some" else "1"
    )
    labels, ends = space["pages"].classes[1:], space["end"].classes[1:]
    drawn = max(least, random.choices(labels, (4, 3, 2, 0.3))[0], key=labels.index)
    pages = random.choice(space["pages"].numbers[want.get("pages") or drawn][:4])
    end = want.get("end") or random.choice(ends)
    slots = {"first": 1, "last": PAGE_SIZE - 1, "whole": PAGE_SIZE}.get(end) or random.randint(
        2, PAGE_SIZE - 2
    )
    return (pages - 1) * PAGE_SIZE + slots
