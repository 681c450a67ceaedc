"""The split-KV schedule of paged decode, made on the device: the pages that each piece of work
reads.
"""

from __future__ import annotations

import torch
from torch_poison.allocations import only_writes

from harness.core.ops import PAGE_SIZE
from harness.core.seams import seam
from harness.ops.parts.split_plan import MAX_SPLITS, SplitPlan, num_pages


def pages_per_chunk(kv_itemsize: int) -> int:
    """Pages of a chunk, the unit of a piece of work, for a cache with elements of `kv_itemsize`
    bytes.

    Pages that a wide type loads at once are several chunks of a narrow type. Planner and kernel
    must assume the same type (vllm-project/vllm#38719).
    """
    return kv_itemsize


def mla_decode_plan(
    seq_lens: torch.Tensor,
    *,
    num_heads: int,
    kv_itemsize: int | None = None,
    page_size: int = PAGE_SIZE,
) -> SplitPlan:
    """Cut each request's pages into at most MAX_SPLITS pieces.

    The longest request sets the size of all pieces.

    seq_lens: [B] int32. `num_heads` is part of the op's signature and not used. With `kv_itemsize`,
    the bytes of an element of the cache, pieces count chunks of pages, otherwise pages. Pages have
    `page_size` slots. Writes
    every element of the plan and reads no value on the host.
    """
    num_requests = seq_lens.shape[0]
    device = seq_lens.device
    work = torch.empty(num_requests * MAX_SPLITS, 3, dtype=torch.int32, device=device)
    num_splits = torch.empty(num_requests, dtype=torch.int32, device=device)
    _cut(seq_lens, work.view(num_requests, MAX_SPLITS, 3), num_splits, kv_itemsize, page_size)
    return SplitPlan(work, num_splits, scratch_room(num_splits), kv_itemsize is not None)


@only_writes
def _cut(
    seq_lens: torch.Tensor,
    items: torch.Tensor,
    num_splits: torch.Tensor,
    kv_itemsize: int | None,
    page_size: int,
) -> None:
    """Write the items [B, MAX_SPLITS, 3] and their numbers [B]."""
    unit = 1 if kv_itemsize is None else pages_per_chunk(kv_itemsize)
    chunks = (num_pages(seq_lens, page_size) + unit - 1).div(unit, rounding_mode="floor")
    # The longest request decides: a piece of equal size for all needs no search, and the largest
    # request still fits into MAX_SPLITS.
    per_split = (chunks.amax() + MAX_SPLITS - 1).div(MAX_SPLITS, rounding_mode="floor").clamp(min=1)
    begin = torch.arange(MAX_SPLITS, device=seq_lens.device) * per_split
    end = torch.minimum(begin + per_split, chunks[:, None])
    used = begin < end
    write_items(items, begin.expand_as(end), end, used)
    num_splits.copy_(used.sum(dim=1))


@seam("plan.surplus-blocks")
def write_items(
    items: torch.Tensor, begin: torch.Tensor, end: torch.Tensor, used: torch.Tensor
) -> None:
    """Fill the plan's items [B, MAX_SPLITS, 3]; begin, end and `used` are [B, MAX_SPLITS].

    Items without work are written too: the grid of a kernel is as large as the plan, and in some
    kernels every block looks up the request of its item (flashinfer-ai/flashinfer#4002).

    items is int32: request, first page, end. begin and end are int64, used bool.
    """
    items[..., 0] = torch.arange(items.shape[0], device=items.device)[:, None]
    items[..., 1] = torch.where(used, begin, 0)
    items[..., 2] = torch.where(used, end, 0)


@seam("plan.split-count-of-capture")
def scratch_room(num_splits: torch.Tensor) -> int:
    """The partial results in each request's scratch: the most of any plan, not of this one with
    num_splits [B].

    A graph keeps the number of its capture, and a later plan may cut longer requests into more
    pieces (vllm-project/vllm#20301).

    num_splits is int32, and is not read: a read would wait for the device.
    """
    return MAX_SPLITS
