"""Few points that hold every pair, or every three, of labels: a covering array.

Most failures of configurations need two or three options at once (Kuhn, Wallace and Gallo,
"Software fault interactions and implications for software testing", IEEE TSE 30(6), 2004). So few
points find them.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from random import Random

ATTEMPTS = 4
"""Rows built for each new point. The one that covers most pairs is taken."""

Labels = dict[str, str]
STRENGTHS = {"pairs": 2, "triples": 3}
"""Value of `cover` in a scenario -> how many axes are combined."""


class Exceptions:
    """Points to leave out: those that have one of its labels on each axis of an exception."""

    def __init__(self, exceptions: Iterable[Mapping[str, Iterable[str]]] = ()) -> None:
        self._all = [
            {axis: frozenset(labels) for axis, labels in one.items()} for one in exceptions
        ]
        # Most labels are in no exception.
        self._others = defaultdict[tuple[str, str], list[dict[str, frozenset[str]]]](list)
        for one in self._all:
            for axis, labels in one.items():
                for label in labels:
                    self._others[axis, label].append(
                        {name: one[name] for name in one if name != axis}
                    )

    def __bool__(self) -> bool:
        return bool(self._all)

    def exclude(self, labels: Labels) -> bool:
        """Whether a point, or a part of one, is left out."""
        return any(_has_one_of_each(labels, one) for one in self._all)

    def exclude_with(self, labels: Labels, axis: str, label: str) -> bool:
        """Whether a part of a point that is not left out would be, with a label of one more
        axis.
        """
        others = self._others.get((axis, label))
        return others is not None and any(_has_one_of_each(labels, one) for one in others)


def _has_one_of_each(labels: Labels, exception: dict[str, frozenset[str]]) -> bool:
    return all(labels.get(axis) in excepted for axis, excepted in exception.items())


def covering(
    axes: Mapping[str, Sequence[str]], strength: int, exceptions: Exceptions, seed: str
) -> list[Labels]:
    """Points that hold each choice of labels of `strength` axes, if a point that is not excepted
    holds it.

    The first point has the first label of every axis, if that is legal. The result depends on the
    arguments only. A choice that no attempt can place is left out.
    """
    # Python's generator by a text: the same points on every machine and in every release.
    random = Random(seed)
    strength = min(strength, len(axes))
    # Sorted, or the order of the axes in the file would decide what is drawn.
    choices = sorted(
        choice
        for names in itertools.combinations(sorted(axes), strength)
        for choice in itertools.product(
            *([(name, label) for label in axes[name]] for name in names)
        )
        if names and not exceptions.exclude(dict(choice))
    )
    left = _Left(axes, choices)
    # The first labels are the plainest values, so the first point is the case to read first.
    first = {axis: labels[0] for axis, labels in axes.items()}
    found = [] if exceptions.exclude(first) or not choices else [first]
    for row in found:
        left.take(row)
    for number, wanted in enumerate(choices):
        if not left.bits >> number & 1:
            continue
        rows = [_row(axes, dict(wanted), left, exceptions, random) for _ in range(ATTEMPTS)]
        best = max(
            (row for row in rows if row),
            key=lambda row: left.held_by(row).bit_count(),
            default=None,
        )
        if best is not None:
            found.append({axis: best[axis] for axis in axes})
            left.take(best)
    return found


class _Left:
    """Choices of labels that no point holds yet, each a bit of a whole number: counting them is one
    operation.
    """

    def __init__(
        self, axes: Mapping[str, Sequence[str]], choices: Sequence[Iterable[tuple[str, str]]]
    ) -> None:
        self.bits = (1 << len(choices)) - 1
        self.of_label = {(axis, label): 0 for axis, labels in axes.items() for label in labels}
        for number, choice in enumerate(choices):
            for label in choice:
                self.of_label[label] |= 1 << number
        of_axis = dict.fromkeys(axes, 0)
        for (axis, _), bits in self.of_label.items():
            of_axis[axis] |= bits
        # Axis -> the choices that say nothing of it. Label -> the choices that a row with it can
        # still hold.
        self.without = {axis: ~bits for axis, bits in of_axis.items()}
        self.only = {
            (axis, label): bits | ~of_axis[axis] for (axis, label), bits in self.of_label.items()
        }

    def held_by(self, row: Labels) -> int:
        """The choices that have labels of a whole row only."""
        return functools.reduce(operator.and_, map(self.only.__getitem__, row.items()), self.bits)

    def take(self, row: Labels) -> None:
        """Remove what a point holds."""
        self.bits &= ~self.held_by(row)


def _row(
    axes: Mapping[str, Sequence[str]],
    row: Labels,
    left: _Left,
    exceptions: Exceptions,
    random: Random,
) -> Labels:
    """A point with the labels of `row` that holds many other choices, or {} if the labels drawn so
    far leave none.
    """
    rest = [axis for axis in axes if axis not in row]
    random.shuffle(rest)
    # Before each axis: the choices that the labels so far leave, and the ones without an axis that
    # comes later.
    held = left.held_by(row)
    later = [
        *itertools.accumulate(
            (left.without[axis] for axis in reversed(rest)), operator.and_, initial=-1
        )
    ]
    for axis, without in zip(rest, reversed(later[:-1]), strict=True):
        legal = [label for label in axes[axis] if not exceptions.exclude_with(row, axis, label)]
        if not legal:
            return {}
        # `max` takes the first of labels that are equally good, so the shuffle decides between
        # them.
        random.shuffle(legal)
        free = held & without
        row[axis] = max(legal, key=lambda label: (free & left.of_label[axis, label]).bit_count())
        held &= left.only[axis, row[axis]]
    return row
