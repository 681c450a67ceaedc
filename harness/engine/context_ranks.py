"""Context split among ranks as in decode context parallelism. One process plays all ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.core.seams import seam


def split(chunk: list[range], num_ranks: int) -> list[list[range]]:
    """The part of a chunk of context that each rank holds: every `num_ranks`-th position of each request."""
    return [
        [range(span.start + (rank - span.start) % num_ranks, span.stop, num_ranks) for span in chunk]
        for rank in range(num_ranks)
    ]


@seam("context.rank-without-kv-lse-zero")
def rank_without_kv(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """The output and lse of a rank without keys, shaped as `out` [T, H, V] and `lse` [H, T].

    Its lse is -inf. An lse of 0 would weigh as a key with score 0 (PR 38416).
    """
    return torch.zeros_like(out), torch.full_like(lse, float("-inf"))
