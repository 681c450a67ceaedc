"""The conditions of `mla_decode`. The unit is a request of the batch. The tensors are read by their methods: no torch.

`read` looks at the arguments as the kernel gets them. `values` is read at the last query token of the first head.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from harness.core.conditions.model import Dimension, Never, Point, Space
from harness.core.conditions.parts import (
    FAR,
    SCORES,
    TYPES,
    around,
    batch_rules,
    choice,
    equal_rules,
    neighbours_empty,
    none_of,
    order_of,
    place_of,
    places,
    ranged,
    same_as_before,
    scores_of,
    shared_with,
)
from harness.core.ops import PAGE_SIZE

TILE = 16
"""Slots of the smallest tile in which kernels read a page."""
PAGES = ranged("pages", "pages of the request", "0 1 2 3 5 9 33")
TOKENS = ranged("tokens", "query tokens", "1 2 3 5 9", "query_len")
HEADS = ranged("heads", "heads of the query", "1 2 16 17 64 128", "num_heads")
BATCH = ranged("batch", "requests of the batch", "1 2 5 17 65")
SPARE = ranged("spare", "columns of the block table past its pages", "0 1 8")
_BLOCKS = {"below 128": range(128), "below 32768": range(128, 32768), "32768+": range(32768, 2**31)}
BLOCK = Dimension("block", tuple(_BLOCKS), "its largest block number", numbers=_BLOCKS)


def end_of(length: int) -> str:
    """Where a request of `length` tokens ends in its last page."""
    if not length:
        return "empty"
    slots = length % PAGE_SIZE
    named = {0: "whole", 1: "first", PAGE_SIZE - 1: "last"}
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
) -> list[Point]:
    """A point for each request. The tensors are as in :data:`harness.core.ops.OPS`."""
    num_requests, num_tokens, num_heads, head_dim = q.shape
    stride, lengths, table = kv_cache.stride(0), seq_lens.tolist(), block_table.tolist()
    pages = [row[: -(-n // PAGE_SIZE)] for row, n in zip(table, lengths, strict=True)]
    holders = Counter(page for row in pages for page in set(row))
    call = {
        "tokens": TOKENS.of(num_tokens),
        "heads": HEADS.of(num_heads),
        "batch": BATCH.of(num_requests),
        "kv": TYPES.get(str(kv_cache.dtype)),
        "latent": "512+64" if head_dim == 576 else "other",
        "pool": "packed" if stride == PAGE_SIZE * head_dim else "apart",
        "plan": "none" if metadata is None else "given",
        "q": "packed" if q.is_contiguous() else "slice",
    }
    factor = scale * (1.0 if kv_scale is None else float(kv_scale))
    points: list[Point] = []
    for b, (length, own) in enumerate(zip(lengths, pages, strict=True)):
        point: dict[str, str | None] = {
            **call,
            "end": end_of(length),
            "pages": PAGES.of(len(own)),
            "place": place_of(b, num_requests),
            "neighbour": same_as_before(b, lengths),
            "around": around(b, lengths),
            "spare": SPARE.of(len(table[b]) - len(own)),
            "window": _window(window, length),
            "order": order_of(own),
        }
        if own:
            top = max(own)
            query = q[b, -1, 0].float()
            found = [x for page in own for x in (kv_cache[page].float() @ query).tolist()][:length]
            point |= {
                "shared": shared_with(own, holders),
                "block": BLOCK.of(top),
                "offset": "past 2^31" if (top + 1) * stride > FAR else "below",
                "values": scores_of([score * factor for score in found]),
            }
        points.append(point)
    return points


def _window(window: int | None, length: int) -> str:
    if window is None:
        return "none"
    return "one" if window == 1 else "inside" if window < length else "past"


_ENDS = ("empty", "first", "inner", "tile", "last", "whole")
_SHARED, _OFFSETS, _NEIGHBOUR = ("own", "some", "all"), ("below", "past 2^31"), ("equal", "other")
_ORDERS = ("rising", "falling", "mixed", "repeated")
_NO_KEYS = {"values": SCORES, "order": _ORDERS, "shared": _SHARED, "block": BLOCK.classes, "offset": _OFFSETS}
_EMPTY = "an empty request has no keys"
_ONE_TOKEN = {"end": ("first",), "pages": ("1",)}
_SMALL_POOL = "a pool of that many elements takes gigabytes of memory"
_LIVE = "a batch has a live request"

SPACE = Space(
    op="mla_decode",
    read=read,
    optional=frozenset({"neighbour", *_NO_KEYS}),
    dimensions=(
        Dimension("end", _ENDS, "where the length ends in its last page"),
        PAGES, TOKENS, HEADS, places(), BATCH,
        Dimension("neighbour", _NEIGHBOUR, "length of the request before, compared with this one"),
        neighbours_empty(), SPARE,
        Dimension("order", _ORDERS, "order of its pages in the cache"),
        Dimension("shared", _SHARED, "its pages that other requests have too"),
        BLOCK,
        Dimension("offset", _OFFSETS, "end of its last block, in elements from the start of the cache"),
        Dimension("pool", ("packed", "apart"), "whether pages lie one behind the other",
                  {"apart": ({"layout": "block_major"}, {"layout": "padded_pages"})}),
        choice("kv", "type of the cache", "kv", fp32="fp32", bf16="bf16", fp8_e4m3="fp8_e4m3"),
        Dimension("latent", ("other", "512+64"), "elements of a slot",
                  {"other": ({"kv_lora_rank": 16, "qk_rope_head_dim": 8}, {"kv_lora_rank": 128},
                             {"kv_lora_rank": 256})}),
        Dimension("window", ("none", "one", "inside", "past"), "keys that a query sees at most",
                  {label: ({"window": 1},) for label in ("one", "inside", "past")}),
        Dimension("plan", ("given", "none"), "metadata of a planner"),
        Dimension("q", ("packed", "slice"), "whether the query is a slice of a wider tensor"),
        Dimension("values", SCORES, "scores of its last query token in the first head"),
    ),
    rules=(
        Never({"end": ("empty",), "pages": PAGES.classes[1:]}, "an empty request has no pages"),
        Never({"end": _ENDS[1:], "pages": ("none",)}, "a request with tokens has pages"),
        *none_of("end", ("empty",), _EMPTY, **_NO_KEYS, window=("inside",)),
        *none_of("pages", ("none",), _EMPTY, **_NO_KEYS, window=("inside",)),
        *none_of("pages", ("1",), "one page has no order, and is shared or not", order=_ORDERS, shared=("some",)),
        Never({"pages": ("2",), "order": ("mixed",)}, "two pages rise, fall or repeat"),
        Never(_ONE_TOKEN | {"tokens": TOKENS.classes[1:]}, "the query tokens are part of a request's length"),
        Never(_ONE_TOKEN | {"window": ("inside",)}, "a window inside of one token has no key"),
        Never(_ONE_TOKEN | {"values": ("ties", "one key")}, "it has one key"),
        *batch_rules(BATCH, {"neighbour": _NEIGHBOUR}, has_around=True),
        *none_of("shared", ("some", "all"), "no other request has pages", batch=("1",), place=("only",)),
        *equal_rules("end", "empty", _ENDS[1:]),
        *equal_rules("pages", "none", PAGES.classes[1:]),
        *none_of("spare", ("none",), "a table has a column", end=("empty",), pages=("none",)),
        Never({"pool": ("packed",), "offset": ("past 2^31",)}, _SMALL_POOL),
        Never({"latent": ("512+64",), "block": ("32768+",)}, _SMALL_POOL),
        *none_of("end", ("empty",), _LIVE, place=("only",), batch=("1",)),
        *none_of("pages", ("none",), _LIVE, place=("only",), batch=("1",)),
    ),
)  # fmt: skip
