"""The conditions that a call of `read_records` shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from harness.core.conditions.model import Point
from harness.core.conditions.parts import (
    around,
    end_of,
    of_records,
    order_of,
    place_of,
    same_as_before,
    shared_with,
)
from harness.core.ops import PAGE_SIZE


def read(
    cache: Any, block_table: Any, cu_seq_lens: Any, *, record_format: str, **_: Any
) -> Iterator[Point]:
    """A point for each request."""
    lengths = [after - first for first, after in pairwise(cu_seq_lens.tolist())]
    table = block_table.tolist()
    pages = [row[: -(-n // PAGE_SIZE)] for row, n in zip(table, lengths, strict=True)]
    holders = Counter(page for row in pages for page in set(row))
    call = of_records(cache, record_format)
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
