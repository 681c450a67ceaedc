"""Known bugs of kernels of `mla_decode_plan`, which are injected on purpose."""

from __future__ import annotations

import torch
from torch import Tensor


def write_items_in_use(items: Tensor, begin: Tensor, end: Tensor, used: Tensor) -> None:
    """Fill in the items [B, M, 3] with work only: the grid's other blocks read unwritten ones.

    begin, end, used: [B, M] (flashinfer-ai/flashinfer#4002).

    items is int32; begin and end are int64, in pages; used is bool.
    """
    requests = torch.arange(items.shape[0], device=items.device)[:, None].expand_as(end)
    for column, values in enumerate((requests, begin, end)):
        items[..., column][used] = values[used].to(items.dtype)


def room_for_this_plan(num_splits: Tensor) -> int:
    """Make room for the pieces of this plan, num_splits [B].

    A graph keeps the number of its capture (vllm-project/vllm#20301).

    num_splits is int32. The count is read on the host.
    """
    return max(int(num_splits.amax()), 1)
