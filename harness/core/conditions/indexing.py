"""The conditions of the stages before sparse attention: index logits, top-k (a unit is a request), slots (a token)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.core.conditions.attention import BATCH
from harness.core.conditions.model import Dimension, Never, Point, Space
from harness.core.conditions.parts import (
    TYPES,
    around,
    batch_rules,
    choice,
    equal_rules,
    neighbours_empty,
    none_of,
    place_of,
    places,
    ranged,
    same_as_before,
)
from harness.core.conditions.writes import BLOCK, END, NEIGHBOUR, PAGES, REQUEST_ENDS, SPARE, SPARES, end_of
from harness.core.ops import PAGE_SIZE

QUERIES = ranged("queries", "query tokens of a request", "1 2 3", "query_len")
HEADS = ranged("heads", "heads of the indexer", "1 2 17 64", "num_heads")
SEEN = ("all", "part")


def _requests(lengths: Sequence[int], num_tokens: int) -> list[Point]:
    """A point for each request: its place, its neighbours, and whether each of its query tokens sees a key."""
    return [
        {
            "batch": BATCH.of(len(lengths)),
            "queries": QUERIES.of(num_tokens),
            "place": place_of(b, len(lengths)),
            "around": around(b, lengths),
            "neighbour": same_as_before(b, lengths),
            "seen": SEEN[length < num_tokens] if length else None,
        }
        for b, length in enumerate(lengths)
    ]


def read_logits(q: Any, weights: Any, kv_cache: Any, block_table: Any, seq_lens: Any, **_: Any) -> list[Point]:
    """A point for each request. The tensors are those of :data:`harness.core.ops.OPS`."""
    lengths = seq_lens.tolist()
    call = {
        "heads": HEADS.of(q.shape[2]),
        "size": "128" if q.shape[3] == 128 else "other",
        "kv": TYPES.get(str(kv_cache.dtype), "indexer_planar"),
        "pool": "packed" if kv_cache.stride(0) == kv_cache.shape[1] * kv_cache.shape[2] else "apart",
    }
    points: list[Point] = []
    for point, length in zip(_requests(lengths, q.shape[1]), lengths, strict=True):
        pages = -(-length // PAGE_SIZE)
        own = {"end": end_of(length), "pages": PAGES.of(pages), "spare": SPARE.of(block_table.shape[1] - pages)}
        points.append({**call, **point, **own})
    return points


_OF_REQUESTS = (QUERIES, BATCH, places(), neighbours_empty(), NEIGHBOUR,
                Dimension("seen", SEEN, "whether each query token sees a key"))  # fmt: skip


def _request_rules(name: str, empty: str, live: Sequence[str]) -> tuple[Never, ...]:
    """What follows from the place of a request, and from class `empty` of its length `name`."""
    return (
        *batch_rules(BATCH, {"neighbour": NEIGHBOUR.classes}, has_around=True),
        *equal_rules(name, empty, live),
        *none_of(name, (empty,), "an empty request has no keys", seen=SEEN),
        Never({"queries": ("1",), "seen": ("part",)}, "one token sees a key or none"),
    )


_LOGITS = Space(
    op="index_logits",
    read=read_logits,
    optional=frozenset({"neighbour", "seen"}),
    dimensions=(
        END, PAGES, *_OF_REQUESTS, SPARES, HEADS,
        choice("kv", "type of the cache", "kv", fp32="fp32", bf16="bf16", indexer_planar="indexer_planar"),
        Dimension("pool", ("packed", "apart"), "whether pages lie one behind the other",
                  {"packed": ({"layout": "contiguous"},), "apart": ({"layout": "block_major"},)}),
        Dimension("size", ("128", "other"), "elements of a key",
                  {"128": ({"index_head_dim": 128},), "other": ({"index_head_dim": 32},)}),
    ),
    rules=(
        *_request_rules("end", "empty", REQUEST_ENDS[1:]),
        *equal_rules("pages", "none", PAGES.classes[1:]),
        *none_of("pages", ("none",), "an empty request has no pages", end=REQUEST_ENDS[1:], seen=SEEN),
        *none_of("end", ("empty",), "an empty request has no pages", pages=PAGES.classes[1:]),
        *(rule for name, label in (("end", "empty"), ("pages", "none"))
          for rule in none_of(name, (label,), "a batch has a live request", batch=("1",), place=("only",),
                              spare=("none",))),
        *none_of("seen", ("part",), "a request with fewer keys than query tokens has few",
                 pages=PAGES.classes[2:], end=("last", "whole")),
        Never({"end": ("inner",), "queries": ("2",), "seen": ("part",)}, "it has one key"),
        Never({"kv": ("indexer_planar",), "size": ("other",)}, "a record of indexer_planar has one size"),
    ),
)  # fmt: skip

LENGTH = ranged("length", "logits of the request's last query token", "0 1 2 16 65", "seq_lens")
TOPK = ranged("topk", "positions to choose", "1 2 16 65", "topk")
RANKS, TIES = ("below", "at", "above"), ("none", "at the last", "all")


def read_topk(logits: Any, seq_lens: Any, *, topk: int, **_: Any) -> list[Point]:
    """A point for each request, by the logits of its last query token."""
    lengths, (rows, columns) = seq_lens.tolist(), logits.shape
    num_tokens = rows // len(lengths)
    call = {
        "topk": TOPK.of(topk),
        "columns": "more" if columns > max(lengths) else "as many",
        "rows": "packed" if logits.stride(0) == columns or rows == 1 else "apart",
    }
    points: list[Point] = []
    for b, (point, length) in enumerate(zip(_requests(lengths, num_tokens), lengths, strict=True)):
        own = {**call, **point, "length": LENGTH.of(length)}
        if length:
            own["rank"] = RANKS[(length >= topk) + (length > topk)]
            best = sorted(logits[(b + 1) * num_tokens - 1, :length].tolist(), reverse=True)
            if length > topk:
                own["ties"] = "none" if best[topk - 1] > best[topk] else "all" if best[0] == best[-1] else "at the last"
        points.append(own)
    return points


_TOPK = Space(
    op="select_topk",
    read=read_topk,
    optional=frozenset({"neighbour", "seen", "rank", "ties"}),
    dimensions=(
        LENGTH, TOPK,
        Dimension("rank", RANKS, "its logits, compared with the positions to choose"),
        Dimension("ties", TIES, "equal logits at the last rank that is chosen, or everywhere",
                  {"none": ({"values": "plain"},), "at the last": ({"values": "plateau"}, {"values": "ties"}),
                   "all": ({"values": "zero"}, {"values": "signed_zeros"})}),
        *_OF_REQUESTS,
        Dimension("columns", ("as many", "more"), "columns past the longest row",
                  {"as many": ({"spare_columns": 0},), "more": ({"spare_columns": 7},)}),
        Dimension("rows", ("packed", "apart"), "whether rows lie one behind the other",
                  {"packed": ({"row_stride": 0},), "apart": ({"row_stride": 400},)}),
    ),
    rules=(
        *_request_rules("length", "none", LENGTH.classes[1:]),
        *none_of("length", ("none",), "an empty request has no logits", rank=RANKS, ties=TIES),
        *none_of("length", ("none",), "a batch has a live request", batch=("1",), place=("only",)),
        *none_of("seen", ("part",), "it has few logits", length=("65+",)),
        *none_of("rank", ("below", "at"), "every logit is chosen", ties=TIES),
        *(Never({"length": (label,), "topk": (k,), "rank": gone}, "its length says so")
          for label, lengths in LENGTH.numbers.items() if label != "none" for k, ks in TOPK.numbers.items()
          if (gone := tuple(rank for rank, is_so in zip(RANKS, (
              lengths.start < ks.stop - 1, set(lengths[:200]) & set(ks[:200]), lengths[-1] > ks.start), strict=True)
              if not is_so))),
        *(Never({"length": (label,), "topk": (k,), "ties": TIES}, "every logit is chosen")
          for label, lengths in LENGTH.numbers.items() for k, ks in TOPK.numbers.items() if lengths[-1] <= ks.start),
        *none_of("length", ("1",), "it has one logit", ties=TIES, rank=("above",)),
        *none_of("topk", ("1",), "one position is chosen", rank=("below",)),
        Never({"queries": ("2",), "seen": ("part",), "length": LENGTH.classes[2:]}, "it has one logit"),
        Never({"queries": ("2",), "seen": ("part",), "rank": ("above",)}, "it has one logit"),
        Never({"queries": ("2",), "seen": ("part",), "ties": TIES}, "it has one logit"),
        *(Never({"rows": ("apart",), name: ("1",), "queries": ("1",)}, "one row") for name in ("batch",)),
        Never({"rows": ("apart",), "place": ("only",), "queries": ("1",)}, "one row"),
    ),
)  # fmt: skip

ROWS = ranged("tokens", "tokens of the call", "1 2 17")
ROOM = ranged("room", "positions that a list has room for", "1 2 64 65", "topk")
LISTS = ("full", "short", "holes", "none")


def read_map(positions: Any, block_table: Any, requests: Any, *, page_size: int, **_: Any) -> list[Point]:
    """A point for each token."""
    rows, table, owners = positions.tolist(), block_table.tolist(), requests.tolist()
    call = {
        "tokens": ROWS.of(len(rows)),
        "room": ROOM.of(len(rows[0])),
        "later": "some" if len(owners) > len(rows) else "none",
    }
    live = [[position for position in row if position >= 0] for row in rows]
    points: list[Point] = []
    for t, (row, own) in enumerate(zip(rows, live, strict=True)):
        listed = (
            "none" if not own else "full" if len(own) == len(row) else "short" if own == row[: len(own)] else "holes"
        )
        point: dict[str, str | None] = {
            **call,
            "list": listed,
            "place": place_of(t, len(rows)),
            "around": around(t, live),
            "owner": None if t == 0 else "same" if owners[t] == owners[t - 1] else "other",
        }
        if own:
            pages = {position // page_size for position in own}
            point["column"] = PAGES.of(max(pages) + 1)
            point["spread"] = "one page" if len(pages) == 1 else "more pages"
            point["block"] = BLOCK.classes[max(table[owners[t]][page] for page in pages) >= 128]
            point["edge"] = "last slot" if any(position % page_size == page_size - 1 for position in own) else "inner"
        points.append(point)
    return points


_OF_LISTS: dict[str, tuple[str, ...]] = {
    "column": PAGES.classes[1:],
    "spread": ("one page", "more pages"),
    "block": BLOCK.classes,
    "edge": ("inner", "last slot"),
}
_MAP = Space(
    op="map_indices",
    read=read_map,
    optional=frozenset({"owner", *_OF_LISTS}),
    dimensions=(
        Dimension("list", LISTS, "-1 nowhere, behind the positions, between them, or alone",
                  {"short": ({"missing": "last"},), "holes": ({"missing": "scattered"},)}),
        ROOM, ROWS, places(), neighbours_empty(),
        Dimension("owner", ("same", "other"), "request of the token before"),
        choice("later", "tokens of the batch behind the mapped ones", "later_tokens", none=0, some=2),
        Dimension("column", PAGES.classes[1:], "pages up to its last position"),
        Dimension("spread", _OF_LISTS["spread"], "pages of its positions"),
        BLOCK,
        Dimension("edge", _OF_LISTS["edge"], "whether it has the last slot of a page"),
    ),
    rules=(
        *batch_rules(ROWS, {"owner": ("same", "other")}, has_around=True),
        *none_of("list", ("none",), "it has no position", **_OF_LISTS),
        *none_of("room", ("1",), "a list of one", list=("short", "holes"), spread=("more pages",)),
        *none_of("column", ("1",), "one page", spread=("more pages",)),
    ),
)  # fmt: skip

SPACES = (_LOGITS, _TOPK, _MAP)
