"""How random calls of an op are drawn, and the words that draws share. No torch here.

An op says it in `harness/ops/<op>/draws.py`, as a record `DRAWS`. A random case calls the op in one
of two ways. Most are drawn from conditions: the classes of three dimensions that go together
(:mod:`harness.scenario.calls`). The others are drawn by the op's own function `plain`.

A draw is the same on every machine: each function takes its choices from the generator that it
gets, in a fixed order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeAlias

from harness.core.catalog import KERNELS
from harness.core.ops import PAGE_SIZE, ops_with, part_of

Given: TypeAlias = dict[str, Any]
"""Parameters of a call, by name; the others have their defaults."""
Wanted: TypeAlias = dict[str, str]
"""Dimension -> class that a unit of the call shall show."""

KV_TYPES = ("fp32", "bf16", "fp8_e4m3")
"""The types of a cache of plain numbers."""


def nothing_to_settle(random: Random, given: Given, first: Wanted) -> None:
    """The parameters are legal as they were drawn."""


def as_drawn(given: Given) -> Given:
    """The parameters as they are."""
    return given


def no_rare_call(rng: Random) -> Given | None:
    """No rare calls."""
    return None


@dataclass(frozen=True, slots=True)
class Draws:
    """How the calls of an op are drawn: what the dimensions of its conditions do not say."""

    place: int
    """The place of the op in the list from which a seed chooses. A new op takes the next one."""
    plain: Callable[[Random], Given] | None = None
    """Draws a call without a look at conditions. None: every call is drawn from conditions."""
    lists: tuple[str, ...] = ()
    """Parameters with one entry for each unit. Other lists are repeated for more units."""
    empty: Mapping[str, int] = field(default_factory=dict)
    """The parameters of an empty unit."""
    weights: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Dimension -> how often each of its classes is drawn. Without, all are as frequent."""
    settle: Callable[[Random, Given, Wanted], None] = nothing_to_settle
    """Makes drawn parameters legal. It gets what the first unit wants, and changes the
    parameters.
    """
    most_units: int = 140
    """Units of a call at most."""
    call: Callable[[Random, Iterator[Wanted], int], Given] | None = None
    """Draws a call from conditions in a way of its own. It gets the classes that each unit wants,
    without end, and the most units that the call may have.
    """
    limited: Callable[[Given], Given] = as_drawn
    """Makes a call from conditions fit for a random case, which must be quick and prove
    something.
    """
    rare: Callable[[Random], Given | None] = no_rare_call
    """Draws a call of a kind that is seldom drawn because it is slow; None most of the time."""
    more: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Parameters that are drawn besides, whichever way drew the call, and their values."""


@functools.cache
def draws() -> dict[str, Draws]:
    """Op -> how its calls are drawn, in the order of their places."""
    found = {op: part_of(op, "draws:DRAWS") for op in ops_with("draws.py")}
    return dict(sorted(found.items(), key=lambda item: item[1].place))


def coin(rng: Random) -> bool:
    """True or False."""
    return rng.random() < 0.5


def drawn_kernel(rng: Random, op: str) -> str:
    """A built-in kernel of `op` that runs on a CPU without further packages."""
    own = (spec for spec in KERNELS if spec.op == op and spec.origin == "built in")
    return rng.choice(
        # Sorted: a seed must give the same kernel in whatever order the kernels are registered.
        sorted(spec.short_name for spec in own if "cpu" in spec.devices and not spec.requires)
    )


def drawn_lengths(rng: Random, least: int, largest: int, *, most: int) -> list[int]:
    """One to `most` lengths. On average, every second one is at the edge of a page."""
    edges = [
        n
        for n in (0, 1, PAGE_SIZE - 1, PAGE_SIZE, PAGE_SIZE + 1, 2 * PAGE_SIZE)
        if least <= n <= largest
    ]
    return [
        rng.choice(edges) if coin(rng) else rng.randint(least, largest)
        for _ in range(rng.randint(1, most))
    ]
