"""The conditions of tokens that a call stores. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from harness.core.conditions.model import Point
from harness.core.conditions.parts import end_in_page, place_of, row_values
from harness.core.ops import PAGE_SIZE


def token_rows(slots: Sequence[int], largest: Sequence[float], call: Point) -> Iterator[Point]:
    """A point for each token: its slot, the slot before, and the largest element of its row."""
    padded = [t for t, slot in enumerate(slots) if slot < 0]
    is_end = padded == list(range(len(slots) - len(padded), len(slots)))
    call = call | {
        "tokens": len(slots),
        "padding": "none" if not padded else "end" if is_end else "between",
    }
    for t, slot in enumerate(slots):
        point: Point = {**call, "row": "live", "place": place_of(t, len(slots))}
        if slot < 0:
            yield point | {"row": "padded"}
            continue
        point |= {
            "slot": end_in_page(slot),
            "block": slot // PAGE_SIZE,
            "values": row_values(largest[t]),
        }
        if t:
            before = slots[t - 1]
            is_same = before // PAGE_SIZE == slot // PAGE_SIZE
            follows = (
                "next slot" if slot == before + 1 else "same page" if is_same else "other page"
            )
            point["before"] = "padded" if before < 0 else follows
        yield point


def largest_of_rows(*parts: Any) -> list[float]:
    """The magnitude of the largest element of each row of tensors side by side.

    Each of `parts` is [T, W] with a W of its own, of any float dtype. NaN of padded rows counts.
    """
    found = [part.float().abs().amax(dim=1).tolist() for part in parts]
    return [max(row) for row in zip(*found, strict=True)]
