"""Faults of experts and of quantized activations: wrong ids, and scales taken over foreign or
unwritten rows.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor
from torch_poison.patterns import Poison


def ids_from_the_end(ids: Tensor, num_experts: int) -> Tensor:
    """Take -1 in ids [T, k] int32 for the last expert of the rank, the one before the trap
    (vllm-project/vllm#46408).
    """
    return torch.where(ids == -1, num_experts - 2, ids)


def ids_in_int64_buffer(ids: Tensor, poison: Poison) -> Tensor:
    """Write 32-bit ids [T, k] into the lower halves of 64-bit elements, and read that memory as
    32-bit ids.

    Every second id that is read is an unwritten upper half (vllm-project/vllm#38359,
    vllm-project/vllm#55147).

    ids is int32, the buffer int64.
    """
    buffer = poison.empty(*ids.shape, dtype=torch.int64, site="router.ids", device=ids.device)
    halves = buffer.view(torch.int32)
    lower = 0 if sys.byteorder == "little" else 1
    halves[:, lower::2] = ids
    return halves.flatten()[: ids.numel()].view(ids.shape)
