"""A greedy cover: few calls that show many combinations of conditions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from random import Random
from typing import Any

from harness.core.conditions.model import Shown, Space, bits
from harness.core.draws import Given, Wanted

PAIR = 50
"""A pair counts as so many triples."""
CANDIDATES = 12
"""Calls drawn for each call that is kept."""


def covering_calls(
    space: Space,
    draw: Callable[[Random, Iterator[Wanted]], Given],
    show: Callable[[Given], Sequence[str]],
    cost: Callable[[Given], float],
    *,
    triples: float,
    seed: str,
    most: int = 400,
    serve: Callable[[Given], Sequence[str]] | None = None,
    known: Sequence[str] = (),
    candidates: int = CANDIDATES,
) -> tuple[list[Given], Shown]:
    """Calls that show every allowed pair and the share `triples` of the triples, and what they
    show.

    Of the drawn calls, the one with the most new combinations for its `cost` is kept. Where `show`
    is an estimate, `serve` returns what a kept call really shows. Other calls show the `known`
    points.
    """
    random, found, shown = Random(seed), [], Shown(space)
    shown.add(known)
    for _ in range(most):
        met, every = shown.counts(3)
        unmet = list(shown.unmet(2))
        if not unmet and met >= triples * every:
            break
        pool = unmet or random.sample(list(shown.unmet(3)), k=min(2000, every - met))

        def wanted(pool: list[Any] = pool) -> Iterator[Wanted]:
            while True:
                yield dict(random.choice(pool)) if random.random() < 0.8 else {}

        best: tuple[float, Given, Sequence[str]] | None = None
        for _ in range(candidates):
            given = draw(random, wanted())
            points = show(given)
            pairs, more = shown.gain(points)
            value = (PAIR * pairs + more) / cost(given)
            if best is None or value > best[0]:
                best = (value, given, points)
        if best is not None and best[0] > 0:
            found.append(best[1])
            shown.add(best[2] if serve is None else serve(best[1]))
    return found, shown


def needed(space: Space, calls: Sequence[tuple[Sequence[str], float]], triples: float) -> list[int]:
    """Which of `calls`, each with its points and its cost, show the same pairs and the share
    `triples` of the triples.

    Calls that show least for their cost, and that no others show, are left out first.
    """
    own = []
    for points, _ in calls:
        shown = Shown(space)
        shown.add(points)
        own.append(
            {
                pair: mask & space.allowed[pair]
                for pair, mask in shown.with_pair.items()
                if pair in space.allowed
            }
        )
    kept, counts = set(range(len(calls))), Counter(c for call in own for c in _combinations(call))
    met, least = (
        sum(len(c) == 3 for c in counts),
        triples * sum(m.bit_count() for m in space.allowed.values()),
    )

    def loss(number: int) -> float:
        alone = [len(c) for c in _combinations(own[number]) if counts[c] == 1]
        return inf if 2 in alone or met - len(alone) < least else len(alone)

    while (
        found := min(kept, key=lambda number: loss(number) / calls[number][1])
    ) is not None and loss(found) < inf:
        met -= int(loss(found))
        counts.subtract(_combinations(own[found]))
        kept.discard(found)
    return sorted(kept)


def most_telling_first(space: Space, calls: Sequence[tuple[Sequence[str], float]]) -> list[int]:
    """The numbers of `calls`, each with its points and its cost: next is the call that shows most
    of what those before it do not, for its cost.
    """
    left, shown, found = list(range(len(calls))), Shown(space), []

    def value(number: int) -> float:
        points, cost = calls[number]
        pairs, triples = shown.gain(points)
        return (PAIR * pairs + triples) / cost

    while left:
        best = max(left, key=value)
        left.remove(best)
        shown.add(calls[best][0])
        found.append(best)
    return found


def _combinations(shown: Mapping[tuple[int, int], int]) -> Iterator[tuple[int, ...]]:
    """The pairs and triples of a call, as numbers of classes."""
    for pair, mask in shown.items():
        yield pair
        yield from ((*pair, third) for third in bits(mask))
