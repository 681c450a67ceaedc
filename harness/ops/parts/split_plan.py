"""A plan of split-KV decode: which pages each item of work covers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.core.ops import PAGE_SIZE

MAX_SPLITS = 4
"""The most pieces of a request; fixed, so that a plan's shape depends on the batch size only."""


@dataclass(eq=False)
class SplitPlan:
    """A schedule as tensors of fixed shape, so that a graph can hold it.

    work: [B * MAX_SPLITS, 3] int32, rows of (request, begin, end). The pieces of request b start at
    row b * MAX_SPLITS; unused ones have begin == end == 0. num_splits: [B] int32, used pieces.
    `room` is the number of partial results in the scratch of a request; a graph keeps it. Begin and
    end count pages, with `in_chunks` chunks of `pages_per_chunk`.
    """

    work: torch.Tensor
    num_splits: torch.Tensor
    room: int = MAX_SPLITS
    in_chunks: bool = False


def num_pages(seq_lens: torch.Tensor, page_size: int = PAGE_SIZE) -> torch.Tensor:
    """Pages of `page_size` slots that hold `seq_lens` tokens: [B] int -> [B] int64."""
    return (seq_lens.to(torch.int64) + page_size - 1) // page_size
