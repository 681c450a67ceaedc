"""Faults of expert ids: of another width, of tokens that were not routed, or of another rank."""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from harness.memory.poison.patterns import Poison


def padding_unmasked(ids: Tensor, num_live: Tensor) -> Tensor:
    """Leave the ids of padding as memory was (sgl-project/sglang#28378)."""
    return ids


def top_by_greater_than(scores: Tensor, num_experts_per_tok: int) -> tuple[Tensor, Tensor]:
    """Keep a score that is greater than the best so far, starting at expert 0. In a row of NaN no score is, so that
    expert 0 is chosen k times (PR 39593)."""
    left = torch.where(scores.isnan(), -torch.inf, scores)
    chosen = []
    for _ in range(num_experts_per_tok):
        best = left.argmax(dim=-1, keepdim=True)
        chosen.append(best)
        left = left.scatter(1, best, -torch.inf)
    ids = torch.cat(chosen, dim=1)
    return scores.gather(1, ids), ids


def ids_from_the_end(ids: Tensor, num_experts: int) -> Tensor:
    """Take -1 for the last expert of the rank, the one before the trap (PR 46408)."""
    return torch.where(ids == -1, num_experts - 2, ids)


def ids_in_int64_buffer(ids: Tensor, poison: Poison) -> Tensor:
    """Write 32-bit ids into the lower halves of 64-bit elements, and read that memory as 32-bit ids.

    Every second id that is read is an unwritten upper half (PR 38359, PR 55147).
    """
    buffer = poison.empty(*ids.shape, dtype=torch.int64, site="router.ids", device=ids.device)
    halves = buffer.view(torch.int32)
    lower = 0 if sys.byteorder == "little" else 1
    halves[:, lower::2] = ids
    return halves.flatten()[: ids.numel()].view(ids.shape)
