"""Few points that hold every pair, or every three, of labels: a covering array.

Most failures of configurations need two or three options at once (Kuhn, Wallace and Gallo, "Software fault interactions
and implications for software testing", IEEE TSE 30(6), 2004). So few points find them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from random import Random

ATTEMPTS = 4
"""Rows built for each new point. The one that covers most pairs is taken."""

Labels = dict[str, str]
Part = frozenset[tuple[str, str]]
STRENGTHS = {"pairs": 2, "triples": 3}
"""Value of `cover` in a scenario -> how many axes are combined."""


def covering(
    axes: Mapping[str, Sequence[str]], strength: int, is_excluded: Callable[[Labels], bool], seed: str
) -> list[Labels]:
    """Points that hold each choice of labels of `strength` axes, if a point that is not excluded holds it.

    The first point has the first label of every axis, if that is legal. `is_excluded` gets points and parts of points.
    The result depends on the arguments only. A choice that no attempt can place is left out.
    """
    random, strength = Random(seed), min(strength, len(axes))
    left = {
        frozenset(labels.items())
        for names in itertools.combinations(axes, strength)
        for choice in itertools.product(*(axes[name] for name in names))
        if names and not is_excluded(labels := dict(zip(names, choice, strict=True)))
    }
    first = {axis: labels[0] for axis, labels in axes.items()}
    found = [] if is_excluded(first) or not left else [first]
    left.difference_update(*(_parts(row, strength) for row in found))
    for wanted in sorted(left, key=sorted):
        if wanted not in left:
            continue
        rows = [_row(axes, wanted, left, is_excluded, random) for _ in range(ATTEMPTS)]
        best = max((row for row in rows if row), key=lambda row: len(left & _parts(row, strength)), default=None)
        if best is not None:
            found.append({axis: best[axis] for axis in axes})
            left -= _parts(best, strength)
    return found


def _row(
    axes: Mapping[str, Sequence[str]],
    wanted: Part,
    left: set[Part],
    is_excluded: Callable[[Labels], bool],
    random: Random,
) -> Labels:
    """A point with `wanted` that covers many others, or {} if the labels drawn so far leave none."""
    row, others = dict(wanted), len(wanted) - 1
    rest = [axis for axis in axes if axis not in row]
    random.shuffle(rest)
    for axis in rest:
        legal = [label for label in axes[axis] if not is_excluded({**row, axis: label})]
        if not legal:
            return {}
        random.shuffle(legal)
        beside = [frozenset(part) for part in itertools.combinations(row.items(), others)]
        row[axis] = max(legal, key=lambda label: sum(part | {(axis, label)} in left for part in beside))
    return row


def _parts(row: Labels, strength: int) -> set[Part]:
    return {frozenset(part) for part in itertools.combinations(row.items(), strength)}
