"""Routed experts with a trap: one expert more than the router knows, whose weights nobody may read."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from harness.engine.batch import Batch
from harness.engine.kernels import Kernels
from harness.engine.quantize import ActivationQuantizer
from harness.graph.launch import launch
from harness.model.moe import MoE
from harness.ops.memory import check_indices
from harness.poison.patterns import Poison


class RoutedExperts:
    """A layer's experts 0 .. X-1 and the trap expert X, full of the poison's `router.ids`.

    An id from memory that nobody wrote leads to the trap, or out of bounds where the poison is strict.
    """

    def __init__(self, moe: MoE, kernels: Kernels, poison: Poison) -> None:
        self._moe = moe
        self._kernels = kernels
        self._poison = poison
        experts = moe.experts
        self._weights = tuple(
            torch.cat((weight, self._trap(weight)))
            for weight in (experts.gate_proj, experts.up_proj, experts.down_proj)
        )

    def _trap(self, weight: torch.Tensor) -> torch.Tensor:
        return self._poison.empty(1, *weight.shape[1:], dtype=weight.dtype, site="router.ids", device=weight.device)

    def __call__(
        self, x: torch.Tensor, batch: Batch, quantize: ActivationQuantizer
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x: [T, hidden] -> the experts' sum [T, hidden], and the ids [T, k] int32 that were used."""
        k = self._moe.num_experts_per_tok
        ids, weights = self._kernels.route_experts(self._moe.gate(x), num_experts_per_tok=k)
        ids = launch(hand_over_ids, ids, self._poison)
        rounded = quantize(x, batch)
        out = launch(apply_experts, rounded, ids, weights, *self._weights)
        if self._moe.shared_experts is not None:
            out = out + self._moe.shared_experts(rounded)
        return out, ids


def hand_over_ids(ids: torch.Tensor, poison: Poison) -> torch.Tensor:
    """The expert ids as the experts' kernel reads them, [T, k] int32: what the router wrote, at the width it wrote.

    A router that writes 32-bit ids into a buffer of 64-bit ones leaves half of it to chance
    (vllm-project/vllm#38359, #55147).
    """
    return ids


def apply_experts(
    x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor,
    gate_proj: torch.Tensor, up_proj: torch.Tensor, down_proj: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """The weighted sum of each token's experts.

    x: [T, hidden], ids: [T, k] int32, weights: [T, k], gate_proj and up_proj: [X + 1, I, hidden], down_proj:
    [X + 1, hidden, I] -> [T, hidden]. Raises IllegalAddress for an id past the trap.
    """
    chosen = check_indices(ids, gate_proj.shape[0], "expert ids")
    column = x.unsqueeze(-1)
    out = torch.zeros_like(x)
    for slot in range(ids.shape[1]):
        expert = chosen[:, slot]
        gated = F.silu(torch.bmm(gate_proj[expert], column)) * torch.bmm(up_proj[expert], column)
        out += torch.bmm(down_proj[expert], gated).squeeze(-1) * weights[:, slot : slot + 1].to(x.dtype)
    return out
