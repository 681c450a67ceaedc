"""A greedy cover: few calls that show many combinations of conditions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from harness.core.conditions.model import Shown, Space
from harness.scenario.batches import Given, Wanted

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
) -> tuple[list[Given], Shown]:
    """Calls that show every allowed pair and the share `triples` of the triples, and what they show.

    Of the drawn calls, the one with the most new combinations for its `cost` is kept. A pair counts as 50 triples.
    Where `show` is an estimate, `serve` returns what a kept call really shows. Other calls show the `known` points.
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
        for _ in range(CANDIDATES):
            given = draw(random, wanted())
            points = show(given)
            pairs, more = shown.gain(points)
            value = (50 * pairs + more) / cost(given)
            if best is None or value > best[0]:
                best = (value, given, points)
        if best is not None and best[0] > 0:
            found.append(best[1])
            shown.add(best[2] if serve is None else serve(best[1]))
    return found, shown
