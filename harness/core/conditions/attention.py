"""What calls of sparse decode (a unit is a token), of attention over a context (a request), of merges (a token) show.

Scores are read in the first head; those of packed records are not.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

from harness.core.conditions.model import Point
from harness.core.conditions.parts import TYPES, around, order_of, place_of, same_as_before, scores_of, shared_with
from harness.core.ops import PAGE_SIZE

SIDES = ("both", "no prefix", "no suffix", "neither")
FAR_APART = 50.0
"""A difference of two lse from which the smaller side has no weight in float32."""


def read_sparse(q: Any, kv_cache: Any, indices: Any, *, scale: float, kv_scale: float | None = None, **_: Any) -> Any:
    """A point for each token. The tensors are those of :data:`harness.core.ops.OPS`."""
    rows = [[slot for slot in row if slot >= 0] for row in indices.tolist()]
    last = [max((i for i, slot in enumerate(row) if slot >= 0), default=-1) for row in indices.tolist()]
    holders = Counter(slot for row in rows for slot in row)
    kv = TYPES.get(str(kv_cache.dtype), "fp8_ds_mla")
    keys = None if kv == "fp8_ds_mla" else kv_cache.float()
    factor, width = scale * (1.0 if kv_scale is None else float(kv_scale)), indices.shape[1]
    call = {
        "heads": q.shape[1],
        "tokens": len(rows),
        "width": width,
        "kv": kv,
        "latent": "512+64" if q.shape[2] == 576 else "other",
        "pool": "packed" if kv_cache.stride(0) == kv_cache.shape[1] * kv_cache.shape[2] else "apart",
    }
    points: list[Point] = []
    for t, own in enumerate(rows):
        point: Point = {
            **call,
            "chosen": len(own),
            "list": "full" if len(own) == width else "inside" if last[t] >= len(own) > 0 else "short",
            "place": place_of(t, len(rows)),
            "around": around(t, rows),
            "order": order_of(own),
            "shared": shared_with(own, holders),
        }
        if own:
            point["block"] = max(own) // PAGE_SIZE
            if keys is not None:
                pages, slots = [slot // PAGE_SIZE for slot in own], [slot % PAGE_SIZE for slot in own]
                found = (keys[pages, slots] @ q[t, 0].float()).tolist()
                point["values"] = scores_of([score * factor for score in found])
        points.append(point)
    return points


def read_context(
    q: Any, k: Any, v: Any, query_start_loc: Any, chunk_start_loc: Any, *, scale: float, **_: Any
) -> list[Point]:
    """A point for each request. The tensors are those of :data:`harness.core.ops.OPS`."""
    rows, keys = list(pairwise(query_start_loc.tolist())), list(pairwise(chunk_start_loc.tolist()))
    sizes = [(row[1] - row[0], key[1] - key[0]) for row, key in zip(rows, keys, strict=True)]
    points: list[Point] = []
    for b, (tokens, context) in enumerate(sizes):
        point: Point = {
            "queries": tokens,
            "context": context,
            "heads": q.shape[1],
            "batch": len(rows),
            "place": place_of(b, len(rows)),
            "around": around(b, [length for _, length in sizes]),
            "neighbour": same_as_before(b, sizes),
            "sizes": "192, 128" if (q.shape[2], v.shape[2]) == (192, 128) else "other",
        }
        if context:
            found = (k[slice(*keys[b]), 0].float() @ q[rows[b][1] - 1, 0].float()).tolist()
            point["values"] = scores_of([score * scale for score in found])
        points.append(point)
    return points


def read_merge(
    prefix_out: Any,
    prefix_lse: Any,
    suffix_out: Any,
    suffix_lse: Any,
    *,
    num_tokens_with_context: int | None = None,
    **_: Any,
) -> list[Point]:
    """A point for each token, by the lse of its last head."""
    tokens, num_heads, width = prefix_out.shape
    merged = tokens if num_tokens_with_context is None else num_tokens_with_context
    prefix, suffix = prefix_lse[-1].tolist(), suffix_lse[-1].tolist()
    infinite = ("-inf", "inf")
    sides = []
    for t in range(tokens):
        empty = str(prefix[t]) in infinite, str(suffix[t]) in infinite
        sides.append("copied" if t >= merged else SIDES[empty[0] + 2 * empty[1]])
    call = {
        "count": "all" if merged == tokens else "some" if merged else "none",
        "tokens": tokens,
        "heads": num_heads,
        "width": "128" if width == 128 else "other",
        "prefix": "packed" if prefix_out.is_contiguous() else "columns",
        "suffix": "packed" if suffix_out.is_contiguous() else "columns",
    }
    points: list[Point] = []
    for t, side in enumerate(sides):
        point: Point = {**call, "side": side, "place": place_of(t, tokens)}
        point["before"] = None if t == 0 else "same" if sides[t - 1] == side else "other"
        if side == "both":
            apart = prefix[t] - suffix[t]
            point["gap"] = "near" if abs(apart) < FAR_APART else "prefix above" if apart > 0 else "suffix above"
        elif side != "copied":
            point["sign"] = "+inf" if "inf" in (str(prefix[t]), str(suffix[t])) else "-inf"
        points.append(point)
    return points
