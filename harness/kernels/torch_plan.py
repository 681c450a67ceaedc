"""The split-KV schedule of paged decode: which pages each piece of work reads, made on the device."""

from __future__ import annotations

import torch

from harness.ops.contracts import PAGE_SIZE

MAX_SPLITS = 4
"""Pieces a request is cut into at most; fixed, so that a plan's shape depends on the batch size only."""


class SplitPlan:
    """A schedule as tensors of fixed shape, so that a graph can hold it.

    work: [B * MAX_SPLITS, 3] int32, rows of (request, begin_page, end_page); the pieces of request b stand at
    b * MAX_SPLITS and after, unused ones have begin_page == end_page == 0. num_splits: [B] int32, pieces in use.
    """

    def __init__(self, work: torch.Tensor, num_splits: torch.Tensor) -> None:
        self.work = work
        self.num_splits = num_splits


def num_pages(seq_lens: torch.Tensor) -> torch.Tensor:
    """Pages that hold `seq_lens` tokens: [B] int -> [B] int64."""
    return (seq_lens.to(torch.int64) + PAGE_SIZE - 1) // PAGE_SIZE


def mla_decode_plan(seq_lens: torch.Tensor, *, num_heads: int) -> SplitPlan:
    """Cut each request's pages into at most MAX_SPLITS pieces of equal size, chosen from the longest request.

    seq_lens: [B] int32. `num_heads` is part of the op's signature; this schedule does not depend on it.
    Every element of the plan is written, and no value is read on the host.
    """
    num_requests = seq_lens.shape[0]
    work = torch.empty(num_requests * MAX_SPLITS, 3, dtype=torch.int32, device=seq_lens.device)
    num_splits = torch.empty(num_requests, dtype=torch.int32, device=seq_lens.device)
    pages = num_pages(seq_lens)
    per_split = (pages.amax() + MAX_SPLITS - 1).div(MAX_SPLITS, rounding_mode="floor").clamp(min=1)
    begin = torch.arange(MAX_SPLITS, device=seq_lens.device) * per_split
    end = torch.minimum(begin + per_split, pages[:, None])
    used = begin < end
    items = work.view(num_requests, MAX_SPLITS, 3)
    items[..., 0] = torch.arange(num_requests, device=seq_lens.device)[:, None]
    items[..., 1] = torch.where(used, begin, 0)
    items[..., 2] = torch.where(used, end, 0)
    num_splits.copy_(used.sum(dim=1))
    return SplitPlan(work, num_splits)
