"""Seeded inputs of `quantize_blocks`: rows sorted by expert, and behind them rows that no expert was given."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from harness.core.errors import InputError
from harness.core.params import QuantizeBlocksParams
from harness.kernels.ops.block_formats import FORMATS
from harness.kernels.ops.inputs import Unowned


@dataclass(slots=True)
class BlockInputs:
    """Arguments of `quantize_blocks`."""

    x: Tensor
    expert_offsets: Tensor
    unowned: list[Unowned] = field(default_factory=list)


def quantize_blocks(params: QuantizeBlocksParams, seed: int) -> BlockInputs:
    """Rows [T, K] bfloat16 of very different sizes, so that a scale of another row's shows. Raises InputError."""
    block = FORMATS[params.block_format].block
    if params.width % block or not any(params.expert_rows):
        raise InputError(
            f"quantize_blocks: width={params.width}, expert_rows={list(params.expert_rows)}; "
            f"give a multiple of {block} and at least one row"
        )
    generator = torch.Generator().manual_seed(seed)
    num_live = sum(params.expert_rows)
    num_rows = num_live + params.orphan_rows
    sizes = torch.exp2(torch.randint(-3, 4, (num_rows, 1), generator=generator).float())
    x = (sizes * torch.randn(num_rows, params.width, generator=generator)).to(torch.bfloat16)
    offsets = torch.tensor([0, *accumulate(params.expert_rows)], dtype=torch.int32)
    return BlockInputs(x, offsets, [Unowned("scale.pad", x[num_live:])])
