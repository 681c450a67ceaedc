"""Faults of dummy batches: they store their tokens, which belong to no request."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.engine.batch import NO_KEYS, Batch, Padding, fill_static
from harness.memory.poison.patterns import Poison


def build_then_clear(static: Batch, dummy: Batch, poison: Poison, padding: Padding = NO_KEYS) -> None:
    """Build the metadata before the slots are cleared, so that the backend's copy has the slots of the last live step
    ."""
    last_step = static.slot_mapping.clone()
    fill_static(static, dummy, poison, padding)
    if static.backend_slots is not None:
        static.backend_slots.copy_(last_step)


def zeroed_slots(num_tokens: int, slot: int, device: torch.device) -> Tensor:
    """A buffer of zeros: slot 0 is the first of the null block (PR 38719)."""
    return torch.zeros(num_tokens, dtype=torch.int64, device=device)


def slot_zero(padding: Padding) -> int:
    """Leave slots of padding and of dummy batches at 0: the first slot of the null block (PR 39444)."""
    return 0
