"""Seeded inputs of `route_experts`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.ops.parts import row_conditions
from harness.ops.parts.inputs import OpInputs, Unowned, randn
from harness.ops.route_experts.params import RouteExpertsParams


@dataclass(slots=True)
class RouteInputs(OpInputs):
    """Arguments of `route_experts`."""

    logits: Tensor
    num_experts_per_tok: int
    num_live: int


def draw(params: RouteExpertsParams, seed: int) -> RouteInputs:
    """Logits [T, X] float32 without ties, spread enough for weights to differ."""
    generator = torch.Generator().manual_seed(seed)
    num_live = params.num_tokens if params.num_live is None else params.num_live
    logits = randn((params.num_tokens, params.num_experts), torch.float32, generator) * 2
    row_conditions.shape_logits(logits, params.values)
    unowned = [Unowned("graph.pad_rows", logits[num_live:])]
    return RouteInputs(logits, params.num_experts_per_tok, num_live, unowned=unowned)
