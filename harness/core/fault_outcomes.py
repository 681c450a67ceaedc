"""What became of an injected fault, and the words for what its scenario declares."""

from __future__ import annotations

from collections.abc import Sequence

CAUGHT = "caught"
"""A declared oracle saw it, and the blame is as declared."""
WRONG_BLAME = "wrong-blame"
"""A declared oracle saw it, and the blame is another than declared."""
MISSED = "missed"
"""No declared oracle saw it."""


def fault_outcome(*, caught: bool, seen: bool) -> str:
    """CAUGHT, WRONG_BLAME or MISSED, by two fields of a
    :class:`harness.core.records.FaultResult`.
    """
    if caught:
        return CAUGHT
    return WRONG_BLAME if seen else MISSED


def declared_blame(must: Sequence[str], may: Sequence[str]) -> str:
    """The sites that a declaration of a fault names:

    ``kv.new``, ``no site``, or ``any of lse, output, or no site``.

    `must` are the sites that have to be blamed, `may` those that can be blamed besides, or not.
    """
    if not may:
        return ", ".join(must) or "no site"
    if must:
        return f"{', '.join(must)}, with or without {', '.join(may)}"
    return f"any of {', '.join(may)}, or no site"
