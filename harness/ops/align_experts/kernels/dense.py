"""Runs of one expert each in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.kernels.checks import check_range
from harness.memory.bounds import check_indices
from harness.ops.align_experts.sizes import aligned_sizes


def align_experts(
    topk_ids: Tensor, *, num_experts: int, block_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Sort choices by expert, each run in whole blocks of `block_size` rows.

    topk_ids [T, k] int32, experts -> sorted_ids [P] int32, expert_ids [B] int32, and the count [1]
    int32 of rows in use.

    Entries of a run past its choices are T * k. What is behind the count is not written. No host
    sync. Raises IllegalAddress for an id that is no expert, ValueError for a `block_size` of 0.
    """
    check_range("block_size", block_size, 1)
    choices = check_indices(topk_ids, num_experts, "topk_ids").flatten()
    size, blocks = aligned_sizes(len(choices), num_experts, block_size)
    counts = torch.zeros(num_experts, dtype=torch.int64, device=choices.device).index_add_(
        0, choices, torch.ones_like(choices)
    )
    padded = (counts + block_size - 1) // block_size * block_size
    ends = padded.cumsum(0)
    sorted_ids, expert_ids = (
        torch.empty(length, dtype=torch.int32, device=choices.device) for length in (size, blocks)
    )
    places = torch.arange(size, device=choices.device)
    # Where nothing is due, the memory keeps its content, as a kernel that stores less would leave
    # it.
    sorted_ids.copy_(torch.where(places < ends[-1], filler(len(choices), sorted_ids), sorted_ids))
    order = choices.sort(stable=True).indices
    experts = choices[order]
    before = counts.cumsum(0) - counts
    sorted_ids[
        (ends - padded)[experts] + torch.arange(len(order), device=order.device) - before[experts]
    ] = order.int()
    starts = torch.arange(blocks, device=choices.device) * block_size
    # `right` gives a block at the end of one run to the next one, and passes over experts without
    # choices.
    owners = torch.searchsorted(ends, starts, right=True).clamp(max=num_experts - 1).int()
    expert_ids.copy_(torch.where(starts < ends[-1], owners, expert_ids))
    return sorted_ids, expert_ids, ends[-1:].int()


def filler(num_choices: int, before: Tensor) -> Tensor:
    """What the entries of a run past its choices hold:

    T * k, which no token has. `before` [n] is what memory held.

    `before` is int32, a result has its type.
    """
    return torch.full_like(before, num_choices)
