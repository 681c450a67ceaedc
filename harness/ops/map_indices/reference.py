"""The slots of `map_indices`."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.core.ops import PAGE_SIZE
from harness.ops.map_indices.inputs import MapInputs


def expected(given: MapInputs) -> Tensor:
    """Slots [T, K] int64, -1 where there is no position."""
    table = given.block_table.long()[given.requests[: len(given.positions)].long()]
    positions = given.positions.long()
    slots = table.gather(1, positions.clamp(min=0) // PAGE_SIZE) * PAGE_SIZE + positions % PAGE_SIZE
    return torch.where(positions >= 0, slots, -1)
