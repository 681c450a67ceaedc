"""The conditions that a call of `mla_decode` shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from harness.core.conditions.model import Point
from harness.core.conditions.parts import (
    FAR,
    TILE,
    TYPES,
    around,
    order_of,
    place_of,
    same_as_before,
    scores_of,
    shared_with,
)
from harness.core.ops import PAGE_SIZE


def end_of(length: int, page_size: int = PAGE_SIZE) -> str:
    """Where a request of `length` tokens ends in its last page of `page_size` slots."""
    if not length:
        return "empty"
    slots = length % page_size
    named = {0: "whole", 1: "first", page_size - 1: "last"}
    return named.get(slots) or ("inner" if slots % TILE else "tile")


def read(
    q: Any,
    kv_cache: Any,
    block_table: Any,
    seq_lens: Any,
    *,
    scale: float,
    kv_scale: float | None = None,
    metadata: Any = None,
    window: int | None = None,
    **_: Any,
) -> Iterator[Point]:
    """A point for each request of `mla_decode`, by its last query token.

    Arguments are as the kernel gets them.
    """
    num_requests, num_tokens, num_heads, head_dim = q.shape
    stride = kv_cache.stride(0)
    page_size = kv_cache.shape[1]
    lengths = seq_lens.tolist()
    table = block_table.tolist()
    pages = [row[: -(-n // page_size)] for row, n in zip(table, lengths, strict=True)]
    # A page that stands twice in one request is not shared.
    holders = Counter(page for row in pages for page in set(row))
    call = {
        "tokens": num_tokens,
        "heads": num_heads,
        "batch": num_requests,
        "kv": TYPES.get(str(kv_cache.dtype)),
        "latent": "512+64" if head_dim == 576 else "other",
        "pool": "packed" if stride == page_size * head_dim else "apart",
        "plan": "none" if metadata is None else "given",
        "q": "packed" if q.is_contiguous() else "slice",
    }
    factor = scale * (1.0 if kv_scale is None else float(kv_scale))
    for b, (length, own) in enumerate(zip(lengths, pages, strict=True)):
        point: Point = {
            **call,
            "end": end_of(length, page_size),
            "pages": len(own),
            "place": place_of(b, num_requests),
            "neighbour": same_as_before(b, lengths),
            "around": around(b, lengths),
            "spare": len(table[b]) - len(own),
            "window": _window(window, length),
            "order": order_of(own),
        }
        if own:
            top = max(own)
            query = q[b, -1, 0].float()
            # Whole pages: a slot past the length spoils its own score alone, which is cut off.
            found = [x for page in own for x in (kv_cache[page].float() @ query).tolist()][:length]
            point |= {
                "shared": shared_with(own, holders),
                "block": top,
                "offset": "past 2^31" if (top + 1) * stride > FAR else "below",
                "values": scores_of([score * factor for score in found]),
            }
        yield point


def _window(window: int | None, length: int) -> str:
    if window is None:
        return "none"
    return "one" if window == 1 else "inside" if window < length else "past"
