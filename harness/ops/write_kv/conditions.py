"""The conditions that a call of `write_kv` shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.core.conditions.model import Point
from harness.core.conditions.parts import FAR, TYPES
from harness.core.conditions.token_rows import largest_of_rows, token_rows
from harness.core.ops import PAGE_SIZE


def read(kv_c: Any, k_pe: Any, kv_cache: Any, slot_mapping: Any, **_: Any) -> Iterator[Point]:
    """A point for each token. The tensors are those of :data:`harness.core.ops.OPS`."""
    slots = slot_mapping.tolist()
    stride = kv_cache.stride(0)
    head_dim = kv_cache.shape[2]
    call: Point = {
        "kv": TYPES[str(kv_cache.dtype)],
        "latent": "512+64" if head_dim == 576 else "other",
        "pool": "packed" if stride == PAGE_SIZE * head_dim else "apart",
        "rows": "packed" if kv_c.stride(0) == kv_c.shape[1] else "slice",
    }
    for point, slot in zip(
        token_rows(slots, largest_of_rows(kv_c, k_pe), call), slots, strict=True
    ):
        if slot >= 0:
            point["offset"] = "past 2^31" if (slot // PAGE_SIZE + 1) * stride > FAR else "below"
        yield point
