"""What calls of `write_kv` and `write_records` (a unit is a token), and of `read_records` (a
request) show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from harness.core.conditions.model import Point
from harness.core.conditions.parts import (
    FAR,
    TYPES,
    around,
    end_in_page,
    order_of,
    place_of,
    row_values,
    same_as_before,
    shared_with,
)
from harness.core.ops import PAGE_SIZE


def _tokens(slots: Sequence[int], largest: Sequence[float], call: Point) -> Iterator[Point]:
    """A point for each token: its slot, the slot before, and the largest element of its row."""
    padded = [t for t, slot in enumerate(slots) if slot < 0]
    is_end = padded == list(range(len(slots) - len(padded), len(slots)))
    call = call | {
        "tokens": len(slots),
        "padding": "none" if not padded else "end" if is_end else "between",
    }
    for t, slot in enumerate(slots):
        point: Point = {**call, "row": "live", "place": place_of(t, len(slots))}
        if slot < 0:
            yield point | {"row": "padded"}
            continue
        point |= {
            "slot": end_in_page(slot),
            "block": slot // PAGE_SIZE,
            "values": row_values(largest[t]),
        }
        if t:
            before = slots[t - 1]
            is_same = before // PAGE_SIZE == slot // PAGE_SIZE
            follows = (
                "next slot" if slot == before + 1 else "same page" if is_same else "other page"
            )
            point["before"] = "padded" if before < 0 else follows
        yield point


def _largest(*parts: Any) -> list[float]:
    """The magnitude of the largest element of each row of [T, W] tensors side by side; NaN of
    padded rows counts.
    """
    found = [part.float().abs().amax(dim=1).tolist() for part in parts]
    return [max(row) for row in zip(*found, strict=True)]


def read_write_kv(
    kv_c: Any, k_pe: Any, kv_cache: Any, slot_mapping: Any, **_: Any
) -> Iterator[Point]:
    """A point for each token. The tensors are those of :data:`harness.core.ops.OPS`."""
    slots, stride = slot_mapping.tolist(), kv_cache.stride(0)
    head_dim = kv_cache.shape[2]
    call: Point = {
        "kv": TYPES[str(kv_cache.dtype)],
        "latent": "512+64" if head_dim == 576 else "other",
        "pool": "packed" if stride == PAGE_SIZE * head_dim else "apart",
        "rows": "packed" if kv_c.stride(0) == kv_c.shape[1] else "slice",
    }
    for point, slot in zip(_tokens(slots, _largest(kv_c, k_pe), call), slots, strict=True):
        if slot >= 0:
            point["offset"] = "past 2^31" if (slot // PAGE_SIZE + 1) * stride > FAR else "below"
        yield point


def read_write_records(
    x: Any, cache: Any, slot_mapping: Any, *, record_format: str, **_: Any
) -> Iterator[Point]:
    return _tokens(slot_mapping.tolist(), _largest(x), _of_records(cache, record_format))


def _of_records(cache: Any, record_format: str) -> Point:
    page = cache.shape[1] * cache.shape[2]
    return {"kv": record_format, "layers": "one" if cache.stride(0) == page else "several"}


def end_of(length: int) -> str:
    """Where a request ends in its last page. `last`: it is one token short of a whole page."""
    found = end_in_page(length - 1) if length else "empty"
    return "whole" if found == "last" else "last" if length % PAGE_SIZE == PAGE_SIZE - 1 else found


def read_read_records(
    cache: Any, block_table: Any, cu_seq_lens: Any, *, record_format: str, **_: Any
) -> Iterator[Point]:
    """A point for each request."""
    lengths = [after - first for first, after in pairwise(cu_seq_lens.tolist())]
    table = block_table.tolist()
    pages = [row[: -(-n // PAGE_SIZE)] for row, n in zip(table, lengths, strict=True)]
    holders = Counter(page for row in pages for page in set(row))
    call = _of_records(cache, record_format)
    for b, (length, own) in enumerate(zip(lengths, pages, strict=True)):
        yield {
            **call,
            "end": end_of(length),
            "pages": len(own),
            "batch": len(lengths),
            "place": place_of(b, len(lengths)),
            "around": around(b, lengths),
            "neighbour": same_as_before(b, lengths),
            "spare": len(table[b]) - len(own),
            "order": order_of(own),
            "shared": shared_with(own, holders),
            "block": max(own, default=None),
        }
