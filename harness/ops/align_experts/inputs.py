"""Seeded inputs of `align_experts`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.ops.align_experts.params import AlignExpertsParams
from harness.ops.parts.inputs import OpInputs


@dataclass(slots=True)
class AlignInputs(OpInputs):
    """Arguments of `align_experts`."""

    topk_ids: Tensor
    num_experts: int
    block_size: int


def draw(params: AlignExpertsParams, seed: int) -> AlignInputs:
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
