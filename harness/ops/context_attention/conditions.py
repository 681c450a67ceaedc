"""The conditions that a call of `context_attention` shows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from harness.core.conditions.model import Point
from harness.core.conditions.parts import around, place_of, same_as_before, scores_of


def read(
    q: Any, k: Any, v: Any, query_start_loc: Any, chunk_start_loc: Any, *, scale: float, **_: Any
) -> Iterator[Point]:
    """A point for each request. The tensors are those of :data:`harness.core.ops.OPS`."""
    rows = list(pairwise(query_start_loc.tolist()))
    keys = list(pairwise(chunk_start_loc.tolist()))
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
            # The first head of the last token stands for the request: planted values are alike in
            # all heads.
            found = (k[slice(*keys[b]), 0].float() @ q[rows[b][1] - 1, 0].float()).tolist()
            point["values"] = scores_of([score * scale for score in found])
        yield point
