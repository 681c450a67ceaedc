"""The conditions that a call of `align_experts` shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.core.conditions.model import Point
from harness.core.conditions.parts import around, place_of


def _run(count: int, size: int) -> str:
    """How many choices an expert has, in blocks of `size`."""
    if count == 0:
        return "none"
    if count % size == 0:
        return "block" if count == size else "blocks"
    return "past" if count > size else "one" if count == 1 else "part"


def read(topk_ids: Any, *, num_experts: int, block_size: int, **_: Any) -> Iterator[Point]:
    counts = [0] * num_experts
    for row in topk_ids.tolist():
        for expert in row:
            counts[expert] += 1
    call = {
        "tokens": topk_ids.shape[0],
        "per token": topk_ids.shape[1],
        "experts": num_experts,
        "block": block_size,
    }
    for e, n in enumerate(counts):
        yield {
            **call,
            "run": _run(n, block_size),
            "place": place_of(e, num_experts),
            "around": around(e, counts),
        }
