"""Seeded inputs of the ops around experts: the router, the alignment of its choices, and the
quantizer by blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.core.op_params import AlignExpertsParams, QuantizeBlocksParams, RouteExpertsParams
from harness.kernels.ops import row_conditions
from harness.kernels.ops.inputs import Inputs, Unowned, offsets, randn


@dataclass(slots=True)
class AlignInputs(Inputs):
    """Arguments of `align_experts`."""

    topk_ids: Tensor
    num_experts: int
    block_size: int


@dataclass(slots=True)
class RouteInputs(Inputs):
    """Arguments of `route_experts`."""

    logits: Tensor
    num_experts_per_tok: int
    num_live: int


@dataclass(slots=True)
class BlockInputs(Inputs):
    """Arguments of `quantize_blocks`."""

    x: Tensor
    expert_offsets: Tensor
    block_format: str


def route_experts(params: RouteExpertsParams, seed: int) -> RouteInputs:
    """Logits [T, X] float32 without ties, spread enough for weights to differ."""
    generator = torch.Generator().manual_seed(seed)
    num_live = params.num_tokens if params.num_live is None else params.num_live
    logits = randn((params.num_tokens, params.num_experts), torch.float32, generator) * 2
    row_conditions.shape_logits(logits, params.values)
    unowned = [Unowned("graph.pad_rows", logits[num_live:])]
    return RouteInputs(logits, params.num_experts_per_tok, num_live, unowned=unowned)


def quantize_blocks(params: QuantizeBlocksParams, seed: int) -> BlockInputs:
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


def align_experts(params: AlignExpertsParams, seed: int) -> AlignInputs:
    """Ids [T, k] int32, distinct for each token, of the first experts."""
    generator = torch.Generator().manual_seed(seed)
    orders = [
        torch.randperm(params.num_used, generator=generator) for _ in range(params.num_tokens)
    ]
    used = torch.arange(params.num_used)
    if params.is_spread:
        used = torch.randperm(params.num_experts, generator=generator)[: params.num_used]
    ids = used[torch.stack(orders)][:, : params.num_experts_per_tok].to(torch.int32).contiguous()
    return AlignInputs(ids, params.num_experts, params.block_size)
