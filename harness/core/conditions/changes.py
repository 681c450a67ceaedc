"""What happened to a running engine, in ordered pairs: state changes, and preemptions, aborts and
prefix hits among them.

A bug may need two changes: experts that moved, then weights that are reloaded
(PrimeIntellect-ai/prime-rl#3583). What one change leaves behind, the next one meets. A change that
comes between may hide it, so a pair has no other state change between its two sides. No torch here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import get_args

from harness.core.conditions.model import Point
from harness.core.conditions.rows import space_of
from harness.core.files import rows_beside
from harness.core.serving_params import Change

CHANGES: tuple[str, ...] = get_args(Change)


def read(happened: Sequence[str], has_graph: bool) -> Iterator[Point]:
    """A point for each pair of `happened`, which names what happened in the order of a run.

    Two events of requests are a pair only behind a state change: without one, they are no news.
    """
    graph = "captured" if has_graph else "none"
    since: list[str] = []
    is_changed = False
    for then in happened:
        is_change = then in CHANGES
        if is_change or is_changed:
            for first in since:
                yield {"first": first, "then": then, "graph": graph}
        since = [then] if is_change else [*since, then]
        is_changed = is_changed or is_change


SPACE = space_of("changes", rows_beside(__file__)["changes"], read)
"""The entry of `changes.yaml`."""
