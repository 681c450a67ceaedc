"""Which oracles a case gives something to look at: an oracle that sees nothing would be an error."""

from __future__ import annotations

from typing import Any

from harness.core.catalog import ORACLES


def usable(oracles: tuple[str, ...], patterns: tuple[str, ...], params: dict[str, Any]) -> tuple[str, ...]:
    """`oracles` without those that need what the case has not: a graph, a second poison pattern, or answers."""
    given = {
        "": True,
        "patterns": len(patterns) > 1,
        "graph": params.get("graph", "none") != "none",
        "answers": "task" in params,
        "warm": bool(params.get("prefix_caching")) and params.get("epochs", 1) > 1 and "layers" in params,
        "flush": bool(params.get("flush")),
        "experts": params.get("num_experts", 0) > 0,
        "mixed": len(_stored_types(params)) > 1,
    }
    return tuple(name for name in oracles if given[ORACLES.get(name).needs])


def _stored_types(params: dict[str, Any]) -> set[str]:
    """What the layers of an engine case keep in the blocks of its pool: types of latents, and states."""
    kv = params.get("kv", "")
    window = params.get("window_kv") or kv
    stored = {"mla": kv, "sparse": kv, "window": window, "kda": "state"}
    return {stored[kind] for kind in params.get("layers", ())}
