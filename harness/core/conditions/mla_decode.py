"""The conditions of `mla_decode`. The unit is a request of the batch. The tensors are read by their methods: no torch.

`read` looks at the arguments as the kernel gets them. `values` is read at the last query token of the first head.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from harness.core.conditions.model import Dimension, Never, Point, Space
from harness.core.conditions.parts import TYPES, order_of, scores_of
from harness.core.ops import PAGE_SIZE

TILE = 16
"""Slots of the smallest tile in which kernels read a page."""
FAR = 2**31
"""The first offset in elements that does not fit a signed number of 32 bits."""
RANGES: dict[str, dict[str, range]] = {
    "pages": {
        "none": range(1), "1": range(1, 2), "2": range(2, 3), "3-4": range(3, 5), "5-8": range(5, 9),
        "9-32": range(9, 33), "33+": range(33, 1564),
    },
    "tokens": {"1": range(1, 2), "2": range(2, 3), "3-4": range(3, 5), "5-8": range(5, 9), "9+": range(9, 4097)},
    "heads": {
        "1": range(1, 2), "2-15": range(2, 16), "16": range(16, 17), "17-63": range(17, 64), "64-127": range(64, 128),
        "128+": range(128, 4097),
    },
    "batch": {
        "1": range(1, 2), "2-4": range(2, 5), "5-16": range(5, 17), "17-64": range(17, 65), "65+": range(65, 4097),
    },
    "spare": {"none": range(1), "1-7": range(1, 8), "8+": range(8, 10_000)},
    "block": {"below 128": range(128), "below 32768": range(128, 32768), "32768+": range(32768, 2**31)},
}  # fmt: skip
"""Dimension -> class -> the numbers that it holds."""


def class_of(dimension: str, number: int) -> str:
    """The class of a number in one of RANGES."""
    return next(label for label, numbers in RANGES[dimension].items() if number in numbers)


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
        "tokens": class_of("tokens", num_tokens),
        "heads": class_of("heads", num_heads),
        "batch": class_of("batch", num_requests),
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
            "pages": class_of("pages", len(own)),
            "place": _place(b, num_requests),
            "neighbour": None if b == 0 else "equal" if lengths[b - 1] == length else "other",
            "around": _around(b, lengths),
            "spare": class_of("spare", len(table[b]) - len(own)),
            "window": _window(window, length),
            "order": order_of(own),
        }
        if own:
            others = sum(holders[page] > 1 for page in own)
            top = max(own)
            query = q[b, -1, 0].float()
            found = [x for page in own for x in (kv_cache[page].float() @ query).tolist()][:length]
            point |= {
                "shared": "own" if not others else "all" if others == len(own) else "some",
                "block": class_of("block", top),
                "offset": "past 2^31" if (top + 1) * stride > FAR else "below",
                "values": scores_of([score * factor for score in found]),
            }
        points.append(point)
    return points


def _place(b: int, num_requests: int) -> str:
    if num_requests == 1:
        return "only"
    return "first" if b == 0 else "last" if b == num_requests - 1 else "middle"


def _around(b: int, lengths: list[int]) -> str:
    """Whether the requests before and behind are empty."""
    before, after = b > 0 and not lengths[b - 1], b + 1 < len(lengths) and not lengths[b + 1]
    return "empty both" if before and after else "empty before" if before else "empty after" if after else "live"


def _window(window: int | None, length: int) -> str:
    if window is None:
        return "none"
    return "one" if window == 1 else "inside" if window < length else "past"


def _examples(dimension: str, name: str) -> dict[str, tuple[dict[str, Any], ...]]:
    return {label: tuple({name: n} for n in numbers[:128]) for label, numbers in RANGES[dimension].items()}


_ENDS = ("empty", "first", "inner", "tile", "last", "whole")
_PAGES = tuple(RANGES["pages"])
_BEFORE, _BEHIND = ("empty before", "empty both"), ("empty after", "empty both")
_SHARED, _BLOCKS, _OFFSETS = ("own", "some", "all"), tuple(RANGES["block"]), ("below", "past 2^31")
_ORDERS = ("rising", "falling", "mixed", "repeated")
_VALUES = ("plain", "zero", "ties", "one key", "large")
_NO_KEYS = {"values": _VALUES, "order": _ORDERS, "shared": _SHARED, "block": _BLOCKS, "offset": _OFFSETS}
_EMPTY = "an empty request has no keys"
_ONE_TOKEN = {"end": ("first",), "pages": ("1",)}
_SMALL_POOL = "a pool of that many elements takes gigabytes of memory"
_EQUAL_EMPTY = "of two equal neighbours both are empty, or none is"

SPACE = Space(
    op="mla_decode",
    read=read,
    optional=frozenset({"neighbour", *_NO_KEYS}),
    dimensions=(
        Dimension("end", _ENDS, "where the length ends in its last page"),
        Dimension("pages", _PAGES, "pages of the request"),
        Dimension("tokens", tuple(RANGES["tokens"]), "query tokens", _examples("tokens", "query_len")),
        Dimension("heads", tuple(RANGES["heads"]), "heads of the query", _examples("heads", "num_heads")),
        Dimension("place", ("only", "first", "middle", "last"), "place of the request in the batch"),
        Dimension("batch", tuple(RANGES["batch"]), "requests of the batch"),
        Dimension("neighbour", ("equal", "other"), "length of the request before, compared with this one"),
        Dimension("around", ("live", "empty before", "empty after", "empty both"), "empty requests beside it"),
        Dimension("spare", tuple(RANGES["spare"]), "columns of the block table past its pages"),
        Dimension("order", _ORDERS, "order of its pages in the cache"),
        Dimension("shared", _SHARED, "its pages that other requests have too"),
        Dimension("block", _BLOCKS, "its largest block number"),
        Dimension("offset", _OFFSETS, "end of its last block, in elements from the start of the cache"),
        Dimension("pool", ("packed", "apart"), "whether pages lie one behind the other",
                  {"apart": ({"layout": "block_major"}, {"layout": "padded_pages"})}),
        Dimension("kv", ("fp32", "bf16", "fp8_e4m3"), "type of the cache",
                  {kv: ({"kv": kv},) for kv in ("fp32", "bf16", "fp8_e4m3")}),
        Dimension("latent", ("other", "512+64"), "elements of a slot",
                  {"other": ({"kv_lora_rank": 16, "qk_rope_head_dim": 8}, {"kv_lora_rank": 128},
                             {"kv_lora_rank": 256})}),
        Dimension("window", ("none", "one", "inside", "past"), "keys that a query sees at most",
                  {label: ({"window": 1},) for label in ("one", "inside", "past")}),
        Dimension("plan", ("given", "none"), "metadata of a planner"),
        Dimension("q", ("packed", "slice"), "whether the query is a slice of a wider tensor"),
        Dimension("values", _VALUES, "scores of its last query token in the first head"),
    ),
    rules=(
        Never({"end": ("empty",), "pages": _PAGES[1:]}, "an empty request has no pages"),
        Never({"end": _ENDS[1:], "pages": ("none",)}, "a request with tokens has pages"),
        *(Never({"end": ("empty",), name: labels}, _EMPTY) for name, labels in _NO_KEYS.items()),
        *(Never({"pages": ("none",), name: labels}, _EMPTY) for name, labels in _NO_KEYS.items()),
        Never({"pages": ("1",), "order": _ORDERS}, "one page has no order"),
        Never({"pages": ("2",), "order": ("mixed",)}, "two pages rise, fall or repeat"),
        Never(_ONE_TOKEN | {"tokens": tuple(RANGES["tokens"])[1:]}, "the query tokens are part of a request's length"),
        Never(_ONE_TOKEN | {"window": ("inside",)}, "a window inside of one token has no key"),
        Never({"end": ("empty",), "window": ("inside",)}, _EMPTY),
        Never({"pages": ("none",), "window": ("inside",)}, _EMPTY),
        Never(_ONE_TOKEN | {"values": ("ties", "one key")}, "it has one key"),
        Never({"batch": ("1",), "place": ("first", "middle", "last")}, "a batch of one has one place"),
        Never({"batch": tuple(RANGES["batch"])[1:], "place": ("only",)}, "a batch of one has one place"),
        Never({"batch": ("1",), "neighbour": ("equal", "other")}, "no request is before it"),
        Never({"place": ("only", "first"), "neighbour": ("equal", "other")}, "no request is before it"),
        Never({"place": ("only", "first"), "around": _BEFORE}, "no request is before it"),
        Never({"place": ("only", "last"), "around": _BEHIND}, "no request is behind it"),
        Never({"batch": ("1",), "around": (*_BEFORE, *_BEHIND)}, "no request is beside it"),
        Never({"batch": ("1",), "shared": ("some", "all")}, "no other request has pages"),
        Never({"place": ("only",), "shared": ("some", "all")}, "no other request has pages"),
        Never({"pages": ("1",), "shared": ("some",)}, "one page is shared or not"),
        *(Never({"around": _BEFORE, "neighbour": ("equal",), name: labels}, _EQUAL_EMPTY)
          for name, labels in (("end", _ENDS[1:]), ("pages", _PAGES[1:]))),
        *(Never({"around": _BEFORE, "neighbour": ("other",), name: labels}, _EQUAL_EMPTY)
          for name, labels in (("end", ("empty",)), ("pages", ("none",)))),
        *(Never({"around": ("live", "empty after"), "neighbour": ("equal",), name: labels}, _EQUAL_EMPTY)
          for name, labels in (("end", ("empty",)), ("pages", ("none",)))),
        Never({"spare": ("none",), "end": ("empty",)}, "a table has a column"),
        Never({"spare": ("none",), "pages": ("none",)}, "a table has a column"),
        Never({"pool": ("packed",), "offset": ("past 2^31",)}, _SMALL_POOL),
        Never({"latent": ("512+64",), "block": ("32768+",)}, _SMALL_POOL),
        Never({"pages": ("none",), "place": ("only",)}, "a batch has a live request"),
        Never({"end": ("empty",), "place": ("only",)}, "a batch has a live request"),
        Never({"end": ("empty",), "batch": ("1",)}, "a batch has a live request"),
        Never({"pages": ("none",), "batch": ("1",)}, "a batch has a live request"),
    ),
)  # fmt: skip
