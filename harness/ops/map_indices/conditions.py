"""The conditions that a call of `map_indices` shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.core.conditions.model import Point
from harness.core.conditions.parts import around, place_of


def read(
    positions: Any, block_table: Any, requests: Any, *, page_size: int, **_: Any
) -> Iterator[Point]:
    """A point for each token."""
    rows = positions.tolist()
    table = block_table.tolist()
    owners = requests.tolist()
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
