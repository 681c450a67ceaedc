"""The conditions that a call of `mla_decode_sparse` shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from harness.core.conditions.model import Point
from harness.core.conditions.parts import TYPES, around, order_of, place_of, scores_of, shared_with
from harness.core.ops import PAGE_SIZE


def read(
    q: Any, kv_cache: Any, indices: Any, *, scale: float, kv_scale: float | None = None, **_: Any
) -> Iterator[Point]:
    """A point for each token. The tensors are those of :data:`harness.core.ops.OPS`."""
    rows = [[slot for slot in row if slot >= 0] for row in indices.tolist()]
    last = [
        max((i for i, slot in enumerate(row) if slot >= 0), default=-1) for row in indices.tolist()
    ]
    holders = Counter(slot for row in rows for slot in row)
    kv = TYPES.get(str(kv_cache.dtype), "fp8_ds_mla")
    # Records are no numbers before they are decoded, so their scores are not looked at.
    keys = None if kv == "fp8_ds_mla" else kv_cache.float()
    factor = scale * (1.0 if kv_scale is None else float(kv_scale))
    width = indices.shape[1]
    call = {
        "heads": q.shape[1],
        "tokens": len(rows),
        "width": width,
        "kv": kv,
        "latent": "512+64" if q.shape[2] == 576 else "other",
        "pool": "packed"
        if kv_cache.stride(0) == kv_cache.shape[1] * kv_cache.shape[2]
        else "apart",
    }
    for t, own in enumerate(rows):
        point: Point = {
            **call,
            "chosen": len(own),
            "list": "full"
            if len(own) == width
            else "inside"
            if last[t] >= len(own) > 0
            else "short",
            "place": place_of(t, len(rows)),
            "around": around(t, rows),
            "order": order_of(own),
            "shared": shared_with(own, holders),
        }
        if own:
            point["block"] = max(own) // PAGE_SIZE
            if keys is not None:
                pages = [slot // PAGE_SIZE for slot in own]
                slots = [slot % PAGE_SIZE for slot in own]
                found = (keys[pages, slots] @ q[t, 0].float()).tolist()
                point["values"] = scores_of([score * factor for score in found])
        yield point
