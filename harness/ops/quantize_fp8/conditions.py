"""The conditions that a call of `quantize_fp8` shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.core.conditions.model import Point
from harness.core.conditions.parts import end_in_page, place_of, row_values


def read(x: Any, *, num_live: Any = None, **_: Any) -> Iterator[Point]:
    """A point for each row."""
    tokens, width = x.shape
    live = tokens if num_live is None else int(num_live)
    sizes = x[:live].float().abs()
    largest = sizes.amax(dim=1).tolist()
    peaks = sizes.argmax(dim=1).tolist()
    amax = max(largest, default=0.0)
    call = {
        "live": "all" if live == tokens else "one" if live == 1 else "some",
        "tokens": tokens,
        "width": width,
        "amax": "large" if amax >= 2.0**9 else "plain" if amax else "zero",
    }
    for t in range(tokens):
        point: Point = {**call, "place": place_of(t, tokens), "row": "live"}
        if t >= live:
            yield point | {"row": "padded"}
            continue
        point["values"] = (
            "zero"
            if not largest[t]
            else "largest"
            if largest[t] == amax
            else row_values(largest[t])
        )
        if largest[t]:
            point["peak"] = end_in_page(peaks[t], width) if width > 1 else "inner"
        yield point
