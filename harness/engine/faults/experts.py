"""Faults of experts and of quantized activations: wrong ids, and scales taken over foreign or
unwritten rows.
"""

from __future__ import annotations

import sys
from itertools import pairwise

import torch
from torch import Tensor
from torch_poison.patterns import Poison

from harness.kernels.ops.block_formats import num_scale_rows


def top_by_greater_than(scores: Tensor, num_experts_per_tok: int) -> tuple[Tensor, Tensor]:
    """Keep a score of [T, X] that is greater than the best so far, starting at expert 0.

    In a row of NaN no score is, so that expert 0 is chosen k times (PR 39593).
    """
    left = torch.where(scores.isnan(), -torch.inf, scores)
    chosen = []
    for _ in range(num_experts_per_tok):
        best = left.argmax(dim=-1, keepdim=True)
        chosen.append(best)
        left = left.scatter(1, best, -torch.inf)
    ids = torch.cat(chosen, dim=1)
    return scores.gather(1, ids), ids


def ids_from_the_end(ids: Tensor, num_experts: int) -> Tensor:
    """Take -1 in ids [T, k] for the last expert of the rank, the one before the trap (PR 46408)."""
    return torch.where(ids == -1, num_experts - 2, ids)


def ids_in_int64_buffer(ids: Tensor, poison: Poison) -> Tensor:
    """Write 32-bit ids [T, k] into the lower halves of 64-bit elements, and read that memory as
    32-bit ids.

    Every second id that is read is an unwritten upper half (PR 38359, PR 55147).
    """
    buffer = poison.empty(*ids.shape, dtype=torch.int64, site="router.ids", device=ids.device)
    halves = buffer.view(torch.int32)
    lower = 0 if sys.byteorder == "little" else 1
    halves[:, lower::2] = ids
    return halves.flatten()[: ids.numel()].view(ids.shape)


WARP_ROWS = 4


def scales_unwritten(num_rows: int, num_blocks: int, device: torch.device) -> Tensor:
    """Leave the rows that round a scale tensor up as memory was (PR 38148)."""
    return torch.empty((num_rows, num_blocks), dtype=torch.uint8, device=device)


def amax_of_row_groups(magnitudes: Tensor) -> Tensor:
    """Reduce [T, G, elements] over the rows of a warp as well (flashinfer-ai/flashinfer#3057)."""
    amax = magnitudes.amax(dim=-1)
    groups = [
        group.amax(dim=0, keepdim=True).expand_as(group) for group in torch.split(amax, WARP_ROWS)
    ]
    return torch.cat(groups)


def orphans_to_expert_zero(num_rows: int, offsets: list[int]) -> Tensor:
    """Take expert 0 for the expert of rows that have none (flashinfer-ai/flashinfer#3574)."""
    rows = torch.arange(num_rows)
    first = 0
    for start, end in pairwise(offsets):
        rows[start:end] = torch.arange(first, first + end - start)
        first += num_scale_rows([end - start])
    return rows
