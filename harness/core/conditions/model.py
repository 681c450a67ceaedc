"""The classes of the calls of an op, which go together, and how many pairs and triples of them a
set of calls showed.

A call has units: the requests of a batch, the tokens of a step. A point says for each dimension
which class one unit has. Two classes are a pair that was shown if one point has both. A unit
without a class in a dimension, such as the values of a request without keys, has None there.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, product
from typing import Any

# A coded point has one character for each dimension, so a dimension has at most 36 classes.
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
NO_CLASS = "-"
MOST_EXAMPLES = 64

Point = dict[str, str | int | None]
"""Dimension -> the class of a unit, or its number."""
Combination = tuple[tuple[str, str], ...]
"""Classes of two or three dimensions, in the order of the dimensions: (("tokens", "2"), ("heads",
"128")).
"""


def words(combination: Iterable[tuple[str, str]]) -> str:
    """`tokens 2, heads 128`."""
    return ", ".join(f"{name} {label}" for name, label in combination)


@dataclass(frozen=True, slots=True)
class Dimension:
    """One property of a call or of its units.

    `examples` has for a class parameters that show it: a kernel that refuses each of them refuses
    the class. A value of a parameter that is a list stands for one unit. A class of `numbers` is
    shown by each of its numbers as `param`. `words` are optional keywords of the kernel that every
    call of a class has.
    """

    name: str
    classes: tuple[str, ...]
    summary: str
    examples: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    numbers: Mapping[str, range] = field(default_factory=dict)
    param: str = ""
    words: Mapping[str, str] = field(default_factory=dict)
    reach: int = 0
    """A number that released models have. The last class has no end, so it does not say so."""

    def of(self, number: int) -> str:
        """The class of a number."""
        return next(label for label, numbers in self.numbers.items() if number in numbers)

    def shown_by(self, label: str) -> Sequence[Mapping[str, Any]]:
        """Parameters that show a class, if it follows from one parameter."""
        if label in self.examples or not self.param:
            return self.examples.get(label, ())
        return [{self.param: number} for number in self.numbers[label][:MOST_EXAMPLES]]


@dataclass(frozen=True, slots=True)
class Never:
    """Classes of two or three dimensions that no legal call has together, and why."""

    classes: Mapping[str, Sequence[str]]
    why: str

    def holds(self, combination: Iterable[tuple[str, str]]) -> bool:
        """Whether the combination has a class of each dimension of this rule."""
        found = dict(combination)
        return all(found.get(name) in labels for name, labels in self.classes.items())


@dataclass(frozen=True)
class Space:
    """The conditions of an op: its dimensions, the rules, and the function that reads the points of
    a call.

    `reader` takes the arguments of a call of the kernel by name. `optional` dimensions may have no
    class. Dimension `units` counts the units of a call. `refused` has classes that the kernel under
    test does not take, and why.
    """

    op: str
    dimensions: tuple[Dimension, ...]
    rules: tuple[Never, ...]
    reader: Callable[..., Iterable[Point]]
    optional: frozenset[str] = frozenset()
    units: str = ""
    refused: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Dimension:
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Dimension]:
        return {dimension.name: dimension for dimension in self.dimensions}

    @cached_property
    def labels(self) -> list[tuple[str, str]]:
        """Every class with its dimension.

        The place in this list is the number of the class, and its bit.
        """
        return [
            (dimension.name, label) for dimension in self.dimensions for label in dimension.classes
        ]

    @cached_property
    def number(self) -> dict[tuple[str, str], int]:
        return {label: number for number, label in enumerate(self.labels)}

    @cached_property
    def mark(self) -> str:
        """Eight digits that change with the classes.

        Points of other classes cannot be counted with these.
        """
        return f"{zlib.crc32(repr(self.labels).encode()):08x}"

    def read(self, *arguments: Any, **named: Any) -> list[dict[str, str | None]]:
        """The points of a call, with a class for each number."""
        return [
            {
                name: self[name].of(found) if isinstance(found, int) else found
                for name, found in point.items()
            }
            for point in self.reader(*arguments, **named)
        ]

    def coded(self, point: Mapping[str, str | None]) -> str:
        """A point as a word of one character for each dimension."""
        found = ((dimension, point.get(dimension.name)) for dimension in self.dimensions)
        return "".join(
            NO_CLASS if label is None else DIGITS[d.classes.index(label)] for d, label in found
        )

    def decoded(self, word: str) -> dict[str, str]:
        """The classes of a coded point."""
        pairs = zip(self.dimensions, word, strict=True)
        return {
            d.name: d.classes[DIGITS.index(letter)] for d, letter in pairs if letter != NO_CLASS
        }

    def shown(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """The points of a call, coded, each once, in order."""
        return tuple(sorted({self.coded(point) for point in self.read(**arguments)}))

    def why_not(self, combination: Iterable[tuple[str, str]]) -> str:
        """Why no legal call has these classes together; empty if a call may have them."""
        combination = tuple(combination)
        if why := self._conflict(combination):
            return why
        for d in self.dimensions:
            if d.name in dict(combination) or d.name in self.optional:
                continue
            reasons = [self._conflict((*combination, (d.name, label))) for label in d.classes]
            if all(reasons):
                return reasons[0]
        return ""

    def _conflict(self, combination: Combination) -> str:
        refused = next((self.refused[label] for label in combination if label in self.refused), "")
        return refused or next((rule.why for rule in self.rules if rule.holds(combination)), "")

    @cached_property
    def allowed(self) -> dict[tuple[int, int], int]:
        """Pair of numbers of classes -> the bits of later classes that make an allowed triple with
        it.
        """
        labels = self.labels
        number = self.number
        every = (1 << len(labels)) - 1
        of_dimension = {
            d.name: sum(1 << number[d.name, label] for label in d.classes) for d in self.dimensions
        }
        required = [mask for name, mask in of_dimension.items() if name not in self.optional]
        # Class -> the bits of the classes that may stand beside it: those of other dimensions,
        # without what a rule of two dimensions forbids.
        goes = [every & ~of_dimension[name] for name, _ in labels]
        for label in self.refused:
            goes = [mask & ~(1 << number[label]) for mask in goes]
            goes[number[label]] = 0
        closed: dict[tuple[int, int], int] = {}
        """Pair -> the classes that a rule of three dimensions forbids beside it."""
        for rule in self.rules:
            groups = [
                [number[name, label] for label in names] for name, names in rule.classes.items()
            ]
            for one, other in combinations(groups, 2):
                # A rule of three dimensions forbids no pair. It closes the third classes beside
                # each of its pairs.
                third = sum(
                    1 << n
                    for group in groups
                    if group is not one and group is not other
                    for n in group
                )
                for a, b in product(one, other):
                    if len(groups) == 2:
                        goes[a] &= ~(1 << b)
                        goes[b] &= ~(1 << a)
                    else:
                        pair = min(a, b), max(a, b)
                        closed[pair] = closed.get(pair, 0) | third

        def with_room(wanted: int, mask: int, own: int) -> int:
            """Those of `wanted` that leave a class of `mask` in every dimension that needs one,
            beside `own`.
            """
            # A unit has a class of every required dimension. So a wanted class is possible only if
            # it is of that dimension itself, or goes with one of its classes that is left.
            for one in required:
                if not one & own:
                    left = one & mask
                    for n in bits(one & mask):
                        left |= goes[n]
                        if not wanted & ~left:
                            break
                    wanted &= left
            return wanted

        found: dict[tuple[int, int], int] = {}
        for a in range(len(labels)):
            for b in bits(goes[a] >> (a + 1) << (a + 1)):
                both = goes[a] & goes[b] & ~closed.get((a, b), 0)
                own = 1 << a | 1 << b
                # A pair is possible only if each required dimension has a class that goes with
                # both.
                if all((both | own) & one for one in required):
                    # Later classes alone, so that each triple stands under one pair.
                    later = both >> (b + 1) << (b + 1) & ~of_dimension[labels[b][0]]
                    found[a, b] = with_room(later, both, own)
        return found

    def combinations(self, strength: int) -> Iterator[Combination]:
        """Every allowed combination of classes of `strength` dimensions."""
        for (a, b), later in self.allowed.items():
            if strength == 2:
                yield self.labels[a], self.labels[b]
            else:
                yield from ((self.labels[a], self.labels[b], self.labels[c]) for c in bits(later))

    def refused_pairs(self) -> Iterator[tuple[Combination, str]]:
        """Every pair of classes of two dimensions that is not allowed, and why."""
        for one, other in combinations(self.labels, 2):
            if one[0] != other[0] and (self.number[one], self.number[other]) not in self.allowed:
                yield (one, other), self.why_not((one, other))


def bits(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class Shown:
    """The pairs and triples of a space that calls showed."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.points: set[str] = set()
        self.with_pair: dict[tuple[int, int], int] = {}
        """Pair -> the bits of later classes that a point showed with it."""

    def add(self, points: Iterable[str]) -> None:
        """Count coded points."""
        new = set(points) - self.points
        self.points |= new
        for pair, mask in _parts(self.space, new):
            self.with_pair[pair] = self.with_pair.get(pair, 0) | mask

    def gain(self, points: Iterable[str]) -> tuple[int, int]:
        """How many allowed pairs and triples these points would add."""
        allowed = self.space.allowed
        pairs = 0
        triples = 0
        for pair, mask in _parts(self.space, set(points) - self.points):
            if pair in allowed:
                pairs += pair not in self.with_pair
                triples += (mask & allowed[pair] & ~self.with_pair.get(pair, 0)).bit_count()
        return pairs, triples

    def counts(self, strength: int) -> tuple[int, int]:
        """How many combinations were met, of how many that are allowed.

        Strength 1 counts single classes.
        """
        allowed = self.space.allowed
        if strength == 1:
            # A class is met, or allowed, if a pair with it is.
            labels, seen = (
                {n for pair in found for n in pair} for found in (allowed, self.with_pair)
            )
            return len(labels & seen), len(labels)
        if strength == 2:
            return sum(pair in self.with_pair for pair in allowed), len(allowed)
        met = sum(
            (mask & self.with_pair.get(pair, 0)).bit_count() for pair, mask in allowed.items()
        )
        return met, sum(mask.bit_count() for mask in allowed.values())

    def has(self, combination: Combination) -> bool:
        """Whether a point showed the combination."""
        a, b, *more = (self.space.number[label] for label in combination)
        mask = self.with_pair.get((a, b))
        return mask is not None and all(mask >> c & 1 for c in more)

    def unmet(self, strength: int) -> Iterator[Combination]:
        """The allowed combinations that no point showed."""
        return (one for one in self.space.combinations(strength) if not self.has(one))


def _parts(space: Space, points: Iterable[str]) -> Iterator[tuple[tuple[int, int], int]]:
    """Each pair of the points, and the bits of the later classes of points that have it."""
    having = [0] * len(space.labels)
    """Class -> the points that have it, a bit for each."""
    for bit, word in enumerate(points):
        for label in space.decoded(word).items():
            having[space.number[label]] |= 1 << bit
    found = [(n, mask) for n, mask in enumerate(having) if mask]
    for place, (a, with_a) in enumerate(found):
        # Two classes are a pair if one point has both: if the bits of their points meet.
        rest = [(n, both) for n, mask in found[place + 1 :] if (both := mask & with_a)]
        for following, (b, with_both) in enumerate(rest, 1):
            yield (a, b), sum(1 << c for c, mask in rest[following:] if mask & with_both)
