"""The conditions of `write_kv` and `write_records` (a unit is a token), and of `read_records` (a request)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, get_args

from harness.core.conditions.attention import BATCH, LATENT, POOL
from harness.core.conditions.model import Dimension, Never, Point, Space
from harness.core.conditions.parts import (
    ENDS,
    FAR,
    ROW_EXAMPLES,
    ROW_VALUES,
    TYPES,
    around,
    batch_rules,
    choice,
    end_in_page,
    equal_rules,
    neighbours_empty,
    none_of,
    order_of,
    place_of,
    places,
    ranged,
    row_values,
    same_as_before,
    shared_with,
)
from harness.core.op_params import RecordFormat
from harness.core.ops import PAGE_SIZE

TOKENS = ranged("tokens", "tokens of the call", "1 2 17 65", "num_tokens")
PADDING = Dimension(
    "padding",
    ("none", "end", "between"),
    "where tokens without a slot stand",
    {"end": ({"padded_at": "end"},), "between": ({"padded_at": "between"},)},
)
BEFORE = ("next slot", "same page", "other page", "padded")
BLOCKS = ("below 128", "128+")
BLOCK = Dimension(
    "block", BLOCKS, "its block number", {"below 128": ({"high_blocks": 0},), "128+": ({"high_blocks": 128},)}
)
SLOT_ORDERS = {
    "next slot": ({"slot_order": "rising"},),
    "same page": ({"slot_order": "falling"}, {"slot_order": "random"}),
    "other page": ({"slot_order": "random"},),
}


def _tokens(slots: Sequence[int], largest: Sequence[float], call: dict[str, str]) -> list[Point]:
    """A point for each token: its slot, the slot before, and the largest element of its row."""
    padded = [t for t, slot in enumerate(slots) if slot < 0]
    is_end = padded == list(range(len(slots) - len(padded), len(slots)))
    call = call | {
        "tokens": TOKENS.of(len(slots)),
        "padding": "none" if not padded else "end" if is_end else "between",
    }
    points: list[Point] = []
    for t, slot in enumerate(slots):
        point: dict[str, str | None] = {**call, "row": "live", "place": place_of(t, len(slots))}
        if slot < 0:
            points.append(point | {"row": "padded"})
            continue
        point |= {
            "slot": end_in_page(slot),
            "block": BLOCKS[slot // PAGE_SIZE >= 128],
            "values": row_values(largest[t]),
        }
        if t:
            before = slots[t - 1]
            is_same = before // PAGE_SIZE == slot // PAGE_SIZE
            kind = 3 if before < 0 else 0 if slot == before + 1 else 1 if is_same else 2
            point["before"] = BEFORE[kind]
        points.append(point)
    return points


def _row_rules(values: Sequence[str] = ROW_VALUES) -> tuple[Never, ...]:
    live = {"slot": ENDS, "block": BLOCKS, "values": tuple(values), "before": BEFORE}
    return (
        *batch_rules(TOKENS, {"before": BEFORE}),
        *none_of("row", ("padded",), "a padded token has no slot", **live),
        *none_of("padding", ("none",), "no token is padded", row=("padded",), before=("padded",)),
        *none_of("tokens", ("1",), "a call has a live token", row=("padded",), padding=("end", "between")),
        *none_of("place", ("only",), "a call has a live token", row=("padded",), padding=("end", "between")),
        Never({"padding": ("end",), "before": ("padded",)}, "padded tokens are the last"),
        Never({"padding": ("end",), "place": ("first",), "row": ("padded",)}, "padded tokens are the last"),
        *(
            Never({"padding": ("end",), "place": ("last",), name: labels}, "padded tokens are the last")
            for name, labels in {"row": ("live",), **live}.items()
        ),
    )


def _largest(*parts: Any) -> list[float]:
    """The magnitude of the largest element of each row of [T, W] tensors side by side; NaN of padded rows counts."""
    found = [part.float().abs().amax(dim=1).tolist() for part in parts]
    return [max(row) for row in zip(*found, strict=True)]


def read_write_kv(kv_c: Any, k_pe: Any, kv_cache: Any, slot_mapping: Any, **_: Any) -> list[Point]:
    """A point for each token. The tensors are those of :data:`harness.core.ops.OPS`."""
    slots, stride = slot_mapping.tolist(), kv_cache.stride(0)
    head_dim = kv_cache.shape[2]
    points = _tokens(
        slots,
        _largest(kv_c, k_pe),
        {
            "kv": TYPES[str(kv_cache.dtype)],
            "latent": "512+64" if head_dim == 576 else "other",
            "pool": "packed" if stride == PAGE_SIZE * head_dim else "apart",
            "rows": "packed" if kv_c.stride(0) == kv_c.shape[1] else "slice",
        },
    )
    for point, slot in zip(points, slots, strict=True):
        if slot >= 0:
            is_far = (slot // PAGE_SIZE + 1) * stride > FAR
            point["offset"] = "past 2^31" if is_far else "below"  # type: ignore[index]
    return points


def read_write_records(x: Any, cache: Any, slot_mapping: Any, *, record_format: str, **_: Any) -> list[Point]:
    """A point for each token."""
    page = cache.shape[1] * cache.shape[2]
    call = {"kv": record_format, "layers": "one" if cache.stride(0) == page else "several"}
    return _tokens(slot_mapping.tolist(), _largest(x), call)


def _token_dimensions(values: Sequence[str] = ROW_VALUES) -> tuple[Dimension, ...]:
    return (
        Dimension(
            "slot",
            ENDS,
            "place of its slot in the page",
            {"first": ({"slot_order": "from_first"},), "last": ({"slot_order": "from_last"},)},
        ),
        Dimension("row", ("live", "padded"), "whether the token has a slot"),
        PADDING,
        TOKENS,
        places(),
        Dimension("before", BEFORE, "slot of the token before", SLOT_ORDERS),
        BLOCK,
        Dimension("values", tuple(values), "largest element of its row", {v: ROW_EXAMPLES[v] for v in values}),
    )


_OPTIONAL = frozenset({"slot", "before", "block", "values", "offset"})
_OFFSETS = ("below", "past 2^31")
_FORMATS = get_args(RecordFormat)
_RECORDS = (
    choice("kv", "format of the records", "kv", **{name: name for name in _FORMATS}),
    choice("layers", "layers in one allocation", "layers", one=1, several=3),
)
_WRITE_KV = Space(
    op="write_kv",
    read=read_write_kv,
    optional=_OPTIONAL,
    dimensions=(
        *_token_dimensions(),
        choice("kv", "type of the cache", "kv", fp32="fp32", bf16="bf16", fp8_e4m3="fp8_e4m3"),
        LATENT,
        POOL,
        Dimension(
            "offset",
            _OFFSETS,
            "end of its block, in elements from the start of the cache",
            {"past 2^31": ({"layout": "large"},)},
        ),
        choice("rows", "whether the latents are slices of a wider tensor", "contiguous", packed=True, slice=False),
    ),
    rules=(
        *_row_rules(),
        *none_of("row", ("padded",), "a padded token has no slot", offset=_OFFSETS),
        Never({"padding": ("end",), "place": ("last",), "offset": _OFFSETS}, "padded tokens are the last"),
        Never({"pool": ("packed",), "offset": ("past 2^31",)}, "a pool of that many elements takes gigabytes"),
        Never({"latent": ("512+64",), "block": ("128+",)}, "a pool of that many elements is slow to fill"),
    ),
)
_RECORD_VALUES = ROW_VALUES[:3]
_WRITE_RECORDS = Space(
    op="write_records",
    read=read_write_records,
    optional=_OPTIONAL - {"offset"},
    dimensions=(*_token_dimensions(_RECORD_VALUES), *_RECORDS),
    rules=(
        *_row_rules(_RECORD_VALUES),
        Never({"kv": ("fp8_e4m3",), "values": ("tiny",)}, "a scale of the whole cache leaves nothing of tiny rows"),
    ),
)

REQUEST_ENDS = ("empty", "first", "inner", "last", "whole")
PAGES = ranged("pages", "pages of the request", "0 1 2 3 5")
SPARE = ranged("spare", "columns of the block table past its pages", "0 1 8")
SPARES = Dimension("spare", SPARE.classes, SPARE.summary,
                   {"none": ({"table_pad": 0},), "1-7": ({"table_pad": 3},), "8+": ({"table_pad": 9},)})  # fmt: skip
END = Dimension("end", REQUEST_ENDS, "where the length ends in its last page")
NEIGHBOUR = Dimension("neighbour", ("equal", "other"), "length of the request before, compared with this one")
ORDERS, SHARED = ("rising", "falling", "mixed", "repeated"), ("own", "some", "all")


def end_of(length: int) -> str:
    """Where a request ends in its last page. `last`: it is one token short of a whole page."""
    found = end_in_page(length - 1) if length else "empty"
    return "whole" if found == "last" else "last" if length % PAGE_SIZE == PAGE_SIZE - 1 else found


def read_read_records(cache: Any, block_table: Any, cu_seq_lens: Any, *, record_format: str, **_: Any) -> list[Point]:
    """A point for each request."""
    lengths = [after - first for first, after in pairwise(cu_seq_lens.tolist())]
    table = block_table.tolist()
    pages = [row[: -(-n // PAGE_SIZE)] for row, n in zip(table, lengths, strict=True)]
    holders = Counter(page for row in pages for page in set(row))
    page = cache.shape[1] * cache.shape[2]
    points: list[Point] = []
    for b, (length, own) in enumerate(zip(lengths, pages, strict=True)):
        point: dict[str, str | None] = {
            "end": end_of(length),
            "pages": PAGES.of(len(own)),
            "batch": BATCH.of(len(lengths)),
            "place": place_of(b, len(lengths)),
            "around": around(b, lengths),
            "neighbour": same_as_before(b, lengths),
            "spare": SPARE.of(len(table[b]) - len(own)),
            "order": order_of(own),
            "shared": shared_with(own, holders),
            "block": BLOCKS[max(own) >= 128] if own else None,
            "kv": record_format,
            "layers": "one" if cache.stride(0) == page else "several",
        }
        points.append(point)
    return points


_NO_KEYS: dict[str, Sequence[str]] = {"order": ORDERS, "shared": SHARED, "block": BLOCKS}
_READ_RECORDS = Space(
    op="read_records",
    read=read_read_records,
    optional=frozenset({"neighbour", *_NO_KEYS}),
    dimensions=(
        END, PAGES, BATCH, places(), neighbours_empty(), NEIGHBOUR, SPARES,
        Dimension("order", ORDERS, "order of its pages in the cache",
                  {"rising": ({"page_order": "rising"},), "falling": ({"page_order": "falling"},),
                   "mixed": ({"page_order": "random"},), "repeated": ({"page_order": "repeated"},)}),
        Dimension("shared", SHARED, "its pages that other requests have too",
                  {"own": ({"page_order": "random"},), "some": ({"page_order": "prefix"},),
                   "all": ({"page_order": "same"},)}),
        BLOCK, *_RECORDS,
    ),
    rules=(
        *batch_rules(BATCH, {"neighbour": ("equal", "other")}, has_around=True),
        *equal_rules("end", "empty", REQUEST_ENDS[1:]),
        *equal_rules("pages", "none", PAGES.classes[1:]),
        Never({"end": ("empty",), "pages": PAGES.classes[1:]}, "an empty request has no pages"),
        Never({"end": REQUEST_ENDS[1:], "pages": ("none",)}, "a request with tokens has pages"),
        *(rule for name, label in (("end", "empty"), ("pages", "none"))
          for rule in (
              *none_of(name, (label,), "an empty request has no keys", **_NO_KEYS),
              *none_of(name, (label,), "a batch has a live request", batch=("1",), place=("only",)),
              *none_of(name, (label,), "a table has a column", spare=("none",)))),
        *none_of("pages", ("1",), "one page has no order, and is shared or not", order=ORDERS, shared=("some",)),
        *none_of("pages", ("2",), "two pages rise, fall or repeat", order=("mixed",)),
        *none_of("batch", ("1",), "no other request has pages", shared=("some", "all")),
        *none_of("place", ("only",), "no other request has pages", shared=("some", "all")),
    ),
)  # fmt: skip

SPACES = (_WRITE_KV, _WRITE_RECORDS, _READ_RECORDS)
