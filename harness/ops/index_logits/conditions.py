"""The conditions that a call of `index_logits` shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.core.conditions.model import Point
from harness.core.conditions.parts import TYPES, end_of, requests
from harness.core.ops import PAGE_SIZE


def read(
    q: Any, weights: Any, kv_cache: Any, block_table: Any, seq_lens: Any, **_: Any
) -> Iterator[Point]:
    """A point for each request. The tensors are those of :data:`harness.core.ops.OPS`."""
    lengths = seq_lens.tolist()
    call = {
        "heads": q.shape[2],
        "size": "128" if q.shape[3] == 128 else "other",
        "kv": TYPES.get(str(kv_cache.dtype), "indexer_planar"),
        "pool": "packed"
        if kv_cache.stride(0) == kv_cache.shape[1] * kv_cache.shape[2]
        else "apart",
    }
    for point, length in zip(requests(lengths, q.shape[1]), lengths, strict=True):
        pages = -(-length // PAGE_SIZE)
        own = {"end": end_of(length), "pages": pages, "spare": block_table.shape[1] - pages}
        yield {**call, **point, **own}
