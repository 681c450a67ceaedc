"""Poison between the segments of a breakable or piecewise graph.

Such a graph is a list of captured segments and eager functions, replayed in order over one pool
that all batch sizes share. At a break of the capture, the blocks of the pool that tensors own are
all that later segments may read. Replays fill the rest of the pool there: free blocks hold what an
earlier segment, or a graph of another size, left (sgl-project/sglang#37606, ROCm/ATOM#1902).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

CHUNK_BYTES = 1 << 17
Range = tuple[int, int]
"""Address and size in bytes."""


def blocks_of(pool: Any, segments: Iterable[dict[str, Any]], *, active: bool) -> list[Range]:
    """The blocks of a pool in a snapshot of the allocator that are active, or those that are
    free.
    """
    return [
        (block["address"], block["size"])
        for segment in segments
        if tuple(segment["segment_pool_id"]) == tuple(pool)
        for block in segment["blocks"]
        if (block["state"] != "inactive") == active
    ]


def without(ranges: Iterable[Range], kept: Iterable[Range]) -> list[Range]:
    """The parts of `ranges` that lie in none of `kept`."""
    left = sorted(ranges)
    for address, size in sorted(kept):
        end = address + size
        cut = []
        for start, length in left:
            stop = start + length
            cut += [(start, min(stop, address) - start), (max(start, end), stop - max(start, end))]
        left = [(start, length) for start, length in cut if length > 0]
    return left


def chunked(ranges: Iterable[Range]) -> list[Range]:
    return [
        (address + offset, min(CHUNK_BYTES, size - offset))
        for address, size in ranges
        # One program fills one chunk, so chunks of one size keep the device busy.
        for offset in range(0, size, CHUNK_BYTES)
    ]


class SegmentFill:
    """The fills of one captured list of segments:

    `note` at each break of the capture, `replay` in place of a loop.
    """

    def __init__(
        self, pool: Any, snapshot: Callable[[], list[dict[str, Any]]] = torch.cuda.memory_snapshot
    ) -> None:
        self._pool = pool
        self._snapshot = snapshot
        self._owned: list[list[Range]] = []
        self._tables: list[torch.Tensor] | None = None

    def note(self) -> None:
        """A segment or an eager function has ended: what tensors own now is not filled behind
        it.
        """
        self._owned.append(blocks_of(self._pool, self._snapshot(), active=True))

    def to_fill(self) -> list[list[Range]]:
        """What is filled behind each step but the last, which leaves the output in memory that no
        tensor owns.
        """
        segments = self._snapshot()
        free = blocks_of(self._pool, segments, active=False)
        return [chunked(without(free, owned)) for owned in self._owned[:-1]]

    def replay(self, steps: list[Callable[[], Any]]) -> int:
        """Run the steps with a fill between each two. Returns the number of fills.

        The pool is read at the first replay: all sizes are captured then, and a tensor that is
        freed later stays as it is.
        """
        from torch_poison.cuda_kernels import fill_chunks
        from torch_poison.cuda_sweep import FILL_WORD

        # Made once: a table of addresses on the device costs a copy, and addresses of a graph do
        # not change.
        if self._tables is None:
            self._tables = [torch.tensor(rows, dtype=torch.int64).cuda() for rows in self.to_fill()]
        num_fills = 0
        for number, step in enumerate(steps):
            step()
            if number < len(self._tables) and len(self._tables[number]):
                fill_chunks(self._tables[number], len(self._tables[number]), FILL_WORD)
                num_fills += 1
        return num_fills
