"""Faults of indices: too narrow, clipped, or counted from the end."""

from __future__ import annotations

import torch
from torch import Tensor


def offsets_in_32_bits(blocks: Tensor, page_stride: int) -> Tensor:
    """Multiply in 32 bits and widen afterwards: pages past 2**32 elements wrap (flashinfer-ai/flashinfer#3136)."""
    return (blocks.to(torch.int64) * page_stride) & 0xFFFFFFFF


def clipped_rows(state_blocks: Tensor, num_blocks: int) -> Tensor:
    """Assume states for half the pool and clip larger ids to the last one, so that requests share a state."""
    return state_blocks.to(torch.int64).clamp(0, num_blocks // 2 - 1)


def slots_from_the_end(slot_mapping: Tensor, num_slots: int) -> tuple[Tensor, Tensor]:
    """Index as Python does: slot -1 of a padded token is the last slot of the last block (PR 43869)."""
    tokens = torch.arange(slot_mapping.shape[0], device=slot_mapping.device)
    return tokens, slot_mapping.to(torch.int64) % num_slots
