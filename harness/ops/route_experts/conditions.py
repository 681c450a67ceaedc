"""The conditions that a call of `route_experts` shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.core.conditions.model import Point
from harness.core.conditions.parts import place_of

# What is drawn lies on either side of these borders, see `row_conditions.shape_logits`.
FAR_LOGITS = 1e3
FLAT_LOGITS = 0.05
OUTWEIGHED = 20.0


def _logits(row: list[float]) -> str:
    """The kind of a token's logits."""
    top, *rest = sorted(row, reverse=True)
    if top >= FAR_LOGITS:
        return "large"
    if rest and top - rest[-1] <= FLAT_LOGITS:
        return "flat"
    if rest and top - rest[0] >= OUTWEIGHED:
        return "one"
    return "negative" if top < 0 else "plain"


def read(
    logits: Any, *, num_experts_per_tok: int, num_live: int | None = None, **_: Any
) -> Iterator[Point]:
    """A point for each token."""
    tokens, experts = logits.shape
    rows = logits.float().tolist()
    live = tokens if num_live is None else num_live
    call = {
        "tokens": tokens,
        "experts": experts,
        "per token": num_experts_per_tok,
        "live": "not given" if num_live is None else "all" if live == tokens else "some",
    }
    for t, row in enumerate(rows):
        point: Point = {**call, "place": place_of(t, tokens), "row": "live"}
        if t >= live:
            yield point | {"row": "padded"}
            continue
        best = sorted(range(experts), key=row.__getitem__)[-num_experts_per_tok:]
        edges = 0 in best, experts - 1 in best
        point["ids"] = (
            "both" if all(edges) else "first" if edges[0] else "last" if edges[1] else "inner"
        )
        yield point | {"values": _logits(row)}
