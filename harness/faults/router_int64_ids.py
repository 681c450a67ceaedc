"""Expert ids written at one width and read at another."""

from __future__ import annotations

import sys

import torch

from harness.poison.patterns import Poison


def ids_in_int64_buffer(ids: torch.Tensor, poison: Poison) -> torch.Tensor:
    """Write 32-bit ids into the lower halves of 64-bit elements, and read that memory as 32-bit ids.

    Every second id that is read is an upper half, which nobody wrote (vllm-project/vllm#38359, #55147).
    """
    buffer = poison.empty(*ids.shape, dtype=torch.int64, site="router.ids", device=ids.device)
    halves = buffer.view(torch.int32)
    lower = 0 if sys.byteorder == "little" else 1
    halves[:, lower::2] = ids
    return halves.flatten()[: ids.numel()].view(ids.shape)
