"""Which oracles a case gives something to look at: an oracle that sees nothing would be an error."""

from __future__ import annotations

from typing import Any

from harness.catalog import ORACLES


def usable(oracles: tuple[str, ...], patterns: tuple[str, ...], params: dict[str, Any]) -> tuple[str, ...]:
    """`oracles` without those that need what the case has not: a graph, a second poison pattern, or answers."""
    given = {
        "": True,
        "patterns": len(patterns) > 1,
        "graph": params.get("graph", "none") != "none",
        "answers": "task" in params,
    }
    return tuple(name for name in oracles if given[ORACLES.get(name).needs])
