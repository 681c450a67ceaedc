"""What calls of decode, of sparse decode, of attention over a context, and of merges show.

A unit is a request of a decode or of a context, a token of a sparse decode or of a merge. Scores
are read in the first head; those of packed records are not. Tensors are read by their methods: no
torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from harness.core.conditions.model import Point
from harness.core.conditions.parts import (
    FAR,
    TYPES,
    around,
    order_of,
    place_of,
    same_as_before,
    scores_of,
    shared_with,
)
from harness.core.ops import PAGE_SIZE

TILE = 16
"""Slots of the smallest tile in which kernels read a page."""
SIDES = ("both", "no prefix", "no suffix", "neither")
FAR_APART = 50.0
"""A difference of two lse from which the smaller side has no weight in float32."""


def end_of(length: int) -> str:
    """Where a request of `length` tokens ends in its last page."""
    if not length:
        return "empty"
    slots = length % PAGE_SIZE
    named = {0: "whole", 1: "first", PAGE_SIZE - 1: "last"}
    return named.get(slots) or ("inner" if slots % TILE else "tile")


def read_decode(
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
    stride, lengths, table = kv_cache.stride(0), seq_lens.tolist(), block_table.tolist()
    pages = [row[: -(-n // PAGE_SIZE)] for row, n in zip(table, lengths, strict=True)]
    holders = Counter(page for row in pages for page in set(row))
    call = {
        "tokens": num_tokens,
        "heads": num_heads,
        "batch": num_requests,
        "kv": TYPES.get(str(kv_cache.dtype)),
        "latent": "512+64" if head_dim == 576 else "other",
        "pool": "packed" if stride == PAGE_SIZE * head_dim else "apart",
        "plan": "none" if metadata is None else "given",
        "q": "packed" if q.is_contiguous() else "slice",
    }
    factor = scale * (1.0 if kv_scale is None else float(kv_scale))
    for b, (length, own) in enumerate(zip(lengths, pages, strict=True)):
        point: Point = {
            **call,
            "end": end_of(length),
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


def read_sparse(
    q: Any, kv_cache: Any, indices: Any, *, scale: float, kv_scale: float | None = None, **_: Any
) -> Iterator[Point]:
    """A point for each token. The tensors are those of :data:`harness.core.ops.OPS`."""
    rows = [[slot for slot in row if slot >= 0] for row in indices.tolist()]
    last = [
        max((i for i, slot in enumerate(row) if slot >= 0), default=-1) for row in indices.tolist()
    ]
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
                pages, slots = (
                    [slot // PAGE_SIZE for slot in own],
                    [slot % PAGE_SIZE for slot in own],
                )
                found = (keys[pages, slots] @ q[t, 0].float()).tolist()
                point["values"] = scores_of([score * factor for score in found])
        yield point


def read_context(
    q: Any, k: Any, v: Any, query_start_loc: Any, chunk_start_loc: Any, *, scale: float, **_: Any
) -> Iterator[Point]:
    """A point for each request. The tensors are those of :data:`harness.core.ops.OPS`."""
    rows, keys = list(pairwise(query_start_loc.tolist())), list(pairwise(chunk_start_loc.tolist()))
    sizes = [(row[1] - row[0], key[1] - key[0]) for row, key in zip(rows, keys, strict=True)]
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
        yield point


def read_merge(
    prefix_out: Any,
    prefix_lse: Any,
    suffix_out: Any,
    suffix_lse: Any,
    *,
    num_tokens_with_context: int | None = None,
    **_: Any,
) -> Iterator[Point]:
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
    for t, side in enumerate(sides):
        point: Point = {**call, "side": side, "place": place_of(t, tokens)}
        point["before"] = None if t == 0 else "same" if sides[t - 1] == side else "other"
        if side == "both":
            apart = prefix[t] - suffix[t]
            point["gap"] = (
                "near"
                if abs(apart) < FAR_APART
                else "prefix above"
                if apart > 0
                else "suffix above"
            )
        elif side != "copied":
            point["sign"] = "+inf" if "inf" in (str(prefix[t]), str(suffix[t])) else "-inf"
        yield point
