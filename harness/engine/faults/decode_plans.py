"""Faults of plans of decodes: read past their end, at another time, or made for another type."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harness.core.params import KvType
from harness.engine.batch import DecodeMetadata
from harness.engine.kernels import Workspace


def write_items_in_use(items: Tensor, begin: Tensor, end: Tensor, used: Tensor) -> None:
    """Fill in the items with work only: the grid's other blocks read unwritten ones (flashinfer-ai/flashinfer#4002)."""
    requests = torch.arange(items.shape[0], device=items.device)[:, None].expand_as(end)
    for column, values in enumerate((requests, begin, end)):
        items[..., column][used] = values[used].to(items.dtype)


def room_for_this_plan(num_splits: Tensor) -> int:
    """Make room for the pieces of this plan only. A graph keeps the number of its short capture (PR 20301)."""
    return max(int(num_splits.amax()), 1)


def itemsize_of_bfloat16(kv: KvType) -> int:
    """Plan without asking for the type of the cache (PR 38719)."""
    return 2


def counters_in_scratch(workspace: Workspace, num_requests: int) -> Tensor:
    """Count in the scratch that all kernels share: the last kernel left it dirty (PR 25520)."""
    return workspace.scratch.view(torch.int32).flatten()[:num_requests]


def rebind_plan(plans: dict[int, Any], size: int, fresh: Any) -> None:
    """Keep the new plan, and leave the tensors that the graph captured as they were (PR 35175)."""
    plans[size] = fresh


def share_warmup_metadata(warmed_up: DecodeMetadata) -> DecodeMetadata:
    """Capture with the metadata of the warm-up. It has a plan, so no planning is captured (PR 42444)."""
    return warmed_up
