"""The split-KV schedule of paged decode: which pages each piece of work reads, made on the device."""

from __future__ import annotations

import torch

from harness.core.ops import PAGE_SIZE
from harness.core.seams import seam

MAX_SPLITS = 4
"""Pieces a request is cut into at most; fixed, so that a plan's shape depends on the batch size only."""


class SplitPlan:
    """A schedule as tensors of fixed shape, so that a graph can hold it.

    work: [B * MAX_SPLITS, 3] int32, rows of (request, begin, end); the pieces of request b stand at b * MAX_SPLITS and
    after, unused ones have begin == end == 0. num_splits: [B] int32, pieces in use. `room` is how many partial results
    a request has scratch for: a number of the launch, which a graph keeps. A piece is counted in pages, or with
    `in_chunks` in chunks of the kernel's choice (`pages_per_chunk`).
    """

    def __init__(
        self, work: torch.Tensor, num_splits: torch.Tensor, room: int = MAX_SPLITS, in_chunks: bool = False
    ) -> None:
        self.work = work
        self.num_splits = num_splits
        self.room = room
        self.in_chunks = in_chunks


def num_pages(seq_lens: torch.Tensor) -> torch.Tensor:
    """Pages that hold `seq_lens` tokens: [B] int -> [B] int64."""
    return (seq_lens.to(torch.int64) + PAGE_SIZE - 1) // PAGE_SIZE


def pages_per_chunk(kv_itemsize: int) -> int:
    """Pages that a piece of work is counted in, for a cache with elements of `kv_itemsize` bytes.

    As many as an element has bytes: what a wide type loads at once, a narrow one loads in several chunks. Planner and
    kernel have to mean the same type (PR 38719).
    """
    return kv_itemsize


def mla_decode_plan(seq_lens: torch.Tensor, *, num_heads: int, kv_itemsize: int | None = None) -> SplitPlan:
    """Cut each request's pages into at most MAX_SPLITS pieces of equal size, chosen from the longest request.

    seq_lens: [B] int32. `num_heads` is part of the op's signature; this schedule does not depend on it. With
    `kv_itemsize`, the bytes of an element of the cache, pieces are counted in chunks of pages, without it in pages.
    Every element of the plan is written, and no value is read on the host.
    """
    num_requests, device = seq_lens.shape[0], seq_lens.device
    work = torch.empty(num_requests * MAX_SPLITS, 3, dtype=torch.int32, device=device)
    num_splits = torch.empty(num_requests, dtype=torch.int32, device=device)
    unit = 1 if kv_itemsize is None else pages_per_chunk(kv_itemsize)
    chunks = (num_pages(seq_lens) + unit - 1).div(unit, rounding_mode="floor")
    per_split = (chunks.amax() + MAX_SPLITS - 1).div(MAX_SPLITS, rounding_mode="floor").clamp(min=1)
    begin = torch.arange(MAX_SPLITS, device=device) * per_split
    end = torch.minimum(begin + per_split, chunks[:, None])
    used = begin < end
    write_items(work.view(num_requests, MAX_SPLITS, 3), begin.expand_as(end), end, used)
    num_splits.copy_(used.sum(dim=1))
    return SplitPlan(work, num_splits, scratch_room(num_splits), kv_itemsize is not None)


@seam("plan.surplus-blocks")
def write_items(items: torch.Tensor, begin: torch.Tensor, end: torch.Tensor, used: torch.Tensor) -> None:
    """Fill the plan's items [B, MAX_SPLITS, 3]; begin, end and `used` are [B, MAX_SPLITS].

    Also those without work: the grid of a kernel is as large as the plan, and there are kernels whose every block looks
    up the request of its item (flashinfer-ai/flashinfer#4002).
    """
    items[..., 0] = torch.arange(items.shape[0], device=items.device)[:, None]
    items[..., 1] = torch.where(used, begin, 0)
    items[..., 2] = torch.where(used, end, 0)


@seam("plan.split-count-of-capture")
def scratch_room(num_splits: torch.Tensor) -> int:
    """How many partial results each request gets scratch for: the most that any plan has, not this one's.

    A graph keeps the number of its capture, and a later plan may cut longer requests into more pieces
    (PR 20301).
    """
    return MAX_SPLITS
