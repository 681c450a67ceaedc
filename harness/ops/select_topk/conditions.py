"""The conditions that a call of `select_topk` shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.core.conditions.model import Point
from harness.core.conditions.parts import requests

RANKS = ("below", "at", "above")


def read(logits: Any, seq_lens: Any, *, topk: int, **_: Any) -> Iterator[Point]:
    """A point for each request, by the logits of its last query token."""
    lengths = seq_lens.tolist()
    (rows, columns) = logits.shape
    num_tokens = rows // len(lengths)
    call = {
        "topk": topk,
        "columns": "more" if columns > max(lengths) else "as many",
        "rows": "packed" if logits.stride(0) == columns or rows == 1 else "apart",
    }
    for b, (point, length) in enumerate(zip(requests(lengths, num_tokens), lengths, strict=True)):
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
