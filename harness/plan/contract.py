"""What a case may ask: poison only where its kernels promise not to look, and oracles that have evidence to judge."""

from __future__ import annotations

from typing import Any

from harness.catalog import KERNELS, ORACLES, SITES
from harness.scenario.matrix import kernel_fields

FINITE_TAIL_SITES = frozenset({"kv.tail"})
"""Slots that the owner of a cache keeps finite for a kernel that declares `needs_finite_tail`."""


def poisonable(sites: tuple[str, ...] | None, system: str, op: str | None, params: dict[str, Any]) -> tuple[str, ...]:
    """`sites`, or all there are, without those that a kernel of the case is promised to find finite."""
    wanted = tuple(SITES.names()) if sites is None else sites
    if _needs_finite_tail(system, op, params):
        return tuple(site for site in wanted if site not in FINITE_TAIL_SITES)
    return wanted


def usable(oracles: tuple[str, ...], patterns: tuple[str, ...], params: dict[str, Any]) -> tuple[str, ...]:
    """`oracles` without those that the case gives nothing to look at: no graph, or fewer than two patterns."""
    given = {"": True, "patterns": len(patterns) > 1, "graph": params.get("graph", "none") != "none"}
    return tuple(name for name in oracles if given[ORACLES.get(name).needs])


def _needs_finite_tail(system: str, op: str | None, params: dict[str, Any]) -> bool:
    for field, field_op in kernel_fields(system, op).items():
        name = f"{field_op}/{params.get(field)}"
        if name in KERNELS and KERNELS.get(name).needs_finite_tail:
            return True
    return False
