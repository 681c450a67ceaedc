"""Context split among ranks, as decode context parallelism stores it, with all ranks played in one process."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.core.seams import seam


def split(chunk: list[range], num_ranks: int) -> list[list[range]]:
    """The parts of a chunk of context that each rank holds: of each request, every `num_ranks`-th position."""
    return [
        [range(span.start + (rank - span.start) % num_ranks, span.stop, num_ranks) for span in chunk]
        for rank in range(num_ranks)
    ]


@seam("context.rank-without-kv-lse-zero")
def rank_without_kv(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """What a rank adds that holds nothing of a chunk, shaped as `out` [T, H, V] and `lse` [H, T]: an empty side.

    Its lse is -inf. An lse of 0 is that of a key with score 0, and takes weight from the others
    (PR 38416).
    """
    return torch.zeros_like(out), torch.full_like(lse, float("-inf"))
