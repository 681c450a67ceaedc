"""Which oracles a case gives something to look at: an oracle that sees nothing would be an error."""

from __future__ import annotations

from harness.core.catalog import ORACLES
from harness.core.params import Params


def usable(oracles: tuple[str, ...], patterns: tuple[str, ...], params: Params) -> tuple[str, ...]:
    """`oracles` without those that need what the case has not: a graph, a second poison pattern, or answers."""
    given = params.gives() | {""} | ({"patterns"} if len(patterns) > 1 else set())
    return tuple(name for name in oracles if ORACLES.get(name).needs in given)
