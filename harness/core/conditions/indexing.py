"""What calls of the stages before sparse attention show: index logits, top-k (a unit is a request),
slots (a token).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from harness.core.conditions.model import Point
from harness.core.conditions.parts import TYPES, around, place_of, same_as_before
from harness.core.conditions.writes import end_of
from harness.core.ops import PAGE_SIZE

SEEN = ("all", "part")


def _requests(lengths: Sequence[int], num_tokens: int) -> Iterator[Point]:
    """A point for each request: its place, its neighbours, and whether each of its query tokens
    sees a key.
    """
    for b, length in enumerate(lengths):
        yield {
            "batch": len(lengths),
            "queries": num_tokens,
            "place": place_of(b, len(lengths)),
            "around": around(b, lengths),
            "neighbour": same_as_before(b, lengths),
            "seen": SEEN[length < num_tokens] if length else None,
        }


def read_logits(
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
    for point, length in zip(_requests(lengths, q.shape[1]), lengths, strict=True):
        pages = -(-length // PAGE_SIZE)
        own = {"end": end_of(length), "pages": pages, "spare": block_table.shape[1] - pages}
        yield {**call, **point, **own}


RANKS = ("below", "at", "above")


def read_topk(logits: Any, seq_lens: Any, *, topk: int, **_: Any) -> Iterator[Point]:
    """A point for each request, by the logits of its last query token."""
    lengths, (rows, columns) = seq_lens.tolist(), logits.shape
    num_tokens = rows // len(lengths)
    call = {
        "topk": topk,
        "columns": "more" if columns > max(lengths) else "as many",
        "rows": "packed" if logits.stride(0) == columns or rows == 1 else "apart",
    }
    for b, (point, length) in enumerate(zip(_requests(lengths, num_tokens), lengths, strict=True)):
        own = {**call, **point, "length": length}
        if length:
            own["rank"] = RANKS[(length >= topk) + (length > topk)]
            best = sorted(logits[(b + 1) * num_tokens - 1, :length].tolist(), reverse=True)
            if length > topk:
                own["ties"] = (
                    "none"
                    if best[topk - 1] > best[topk]
                    else "all"
                    if best[0] == best[-1]
                    else "at the last"
                )
        yield own


def read_map(
    positions: Any, block_table: Any, requests: Any, *, page_size: int, **_: Any
) -> Iterator[Point]:
    """A point for each token."""
    rows, table, owners = positions.tolist(), block_table.tolist(), requests.tolist()
    call = {
        "tokens": len(rows),
        "room": len(rows[0]),
        "later": "some" if len(owners) > len(rows) else "none",
    }
    live = [[position for position in row if position >= 0] for row in rows]
    for t, (row, own) in enumerate(zip(rows, live, strict=True)):
        listed = (
            "none"
            if not own
            else "full"
            if len(own) == len(row)
            else "short"
            if own == row[: len(own)]
            else "holes"
        )
        point: Point = {
            **call,
            "list": listed,
            "place": place_of(t, len(rows)),
            "around": around(t, live),
            "owner": None if t == 0 else "same" if owners[t] == owners[t - 1] else "other",
        }
        if own:
            pages = {position // page_size for position in own}
            point["column"] = max(pages) + 1
            point["spread"] = "one page" if len(pages) == 1 else "more pages"
            point["block"] = max(table[owners[t]][page] for page in pages)
            point["edge"] = (
                "last slot"
                if any(position % page_size == page_size - 1 for position in own)
                else "inner"
            )
        yield point
