"""The conditions that a call of `quantize_blocks` shows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from harness.core.conditions.model import Point
from harness.core.conditions.parts import around, end_in_page, place_of, row_values
from harness.ops.quantize_blocks.params import QuantizeBlocksParams


def read(x: Any, expert_offsets: Any, *, block_format: str, **_: Any) -> Iterator[Point]:
    """A point for each row that an expert has."""
    tokens, width = x.shape
    bounds = expert_offsets.tolist()
    counts = [end - start for start, end in pairwise(bounds)]
    largest = x[: bounds[-1]].float().abs().amax(dim=1).tolist()
    blocks = width // QuantizeBlocksParams.BLOCKS[block_format]
    call = {
        "format": block_format,
        "width": "one" if blocks == 1 else "few" if blocks <= 8 else "many",
        "experts": len(counts),
        "orphans": "some" if tokens > bounds[-1] else "none",
    }
    for expert, (start, count) in enumerate(zip(bounds, counts, strict=False)):
        own = {
            **call,
            "run": count or None,
            "place": place_of(expert, len(counts)),
            "around": around(expert, counts),
        }
        for row in range(count):
            yield {**own, "tile": end_in_page(row, 128), "values": row_values(largest[start + row])}
