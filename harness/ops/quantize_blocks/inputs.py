"""Seeded inputs of `quantize_blocks`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.ops.parts import row_conditions
from harness.ops.parts.inputs import OpInputs, Unowned, offsets
from harness.ops.quantize_blocks.params import QuantizeBlocksParams


@dataclass(slots=True)
class BlockInputs(OpInputs):
    """Arguments of `quantize_blocks`."""

    x: Tensor
    expert_offsets: Tensor
    block_format: str


def draw(params: QuantizeBlocksParams, seed: int) -> BlockInputs:
    """Rows [T, K] bfloat16 sorted by expert, then rows of no expert."""
    generator = torch.Generator().manual_seed(seed)
    num_live = sum(params.expert_rows)
    num_rows = num_live + params.orphan_rows
    # Rows differ much in size, so that the scale of another row shows.
    sizes = torch.exp2(torch.randint(-3, 4, (num_rows, 1), generator=generator).float())
    x = (sizes * torch.randn(num_rows, params.width, generator=generator)).to(torch.bfloat16)
    x[: params.zero_rows] = 0.0
    row_conditions.resize_rows(x, params.values)
    unowned = [Unowned("scale.pad", x[num_live:])]
    return BlockInputs(x, offsets(params.expert_rows), params.block_format, unowned=unowned)
