"""What calls of the router, of the alignment of its choices, and of the quantizers show.

A unit is a token of the router, an expert of an alignment, a row of a quantizer.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from harness.core.conditions.model import Point
from harness.core.conditions.parts import around, end_in_page, place_of, row_values
from harness.core.op_params import QuantizeBlocksParams

FAR_LOGITS, FLAT_LOGITS, OUTWEIGHED = 1e3, 0.05, 20.0


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


def read_route(
    logits: Any, *, num_experts_per_tok: int, num_live: int | None = None, **_: Any
) -> Iterator[Point]:
    """A point for each token."""
    tokens, experts = logits.shape
    rows, live = logits.float().tolist(), tokens if num_live is None else num_live
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


def _run(count: int, size: int) -> str:
    """How many choices an expert has, in blocks of `size`."""
    if count == 0:
        return "none"
    if count % size == 0:
        return "block" if count == size else "blocks"
    return "past" if count > size else "one" if count == 1 else "part"


def read_align(topk_ids: Any, *, num_experts: int, block_size: int, **_: Any) -> Iterator[Point]:
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


def read_quantize_fp8(x: Any, *, num_live: Any = None, **_: Any) -> Iterator[Point]:
    """A point for each row."""
    tokens, width = x.shape
    live = tokens if num_live is None else int(num_live)
    sizes = x[:live].float().abs()
    largest, peaks = sizes.amax(dim=1).tolist(), sizes.argmax(dim=1).tolist()
    amax = max(largest, default=0.0)
    call = {
        "live": "all" if live == tokens else "one" if live == 1 else "some",
        "tokens": tokens,
        "width": width,
        "amax": "large" if amax >= 2.0**9 else "plain" if amax else "zero",
    }
    for t in range(tokens):
        point: Point = {**call, "place": place_of(t, tokens), "row": "live"}
        if t >= live:
            yield point | {"row": "padded"}
            continue
        point["values"] = (
            "zero"
            if not largest[t]
            else "largest"
            if largest[t] == amax
            else row_values(largest[t])
        )
        if largest[t]:
            point["peak"] = end_in_page(peaks[t], width) if width > 1 else "inner"
        yield point


def read_quantize_blocks(
    x: Any, expert_offsets: Any, *, block_format: str, **_: Any
) -> Iterator[Point]:
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
