"""A strategy for vLLM's routing simulator that selects the model's own experts
(vllm-project/vllm#38359).

vLLM's own strategies draw experts at random, so their answers cannot be judged. This one uses the
same code path, with 64-bit ids unless the experts need another type, and selects the experts that
the model's router would select.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from mla_harness_vllm.objects import RoutingStrategy
from mla_harness_vllm.serve.settings import STRATEGY

_SIMULATOR = "vllm.model_executor.layers.fused_moe.router.routing_simulator_router"


class TopK:
    """Top-k of the softmax, renormalized, as in `engine.model.moe.route`.

    Ids have the type of vLLM's own.
    """

    def route_tokens(
        self,
        hidden_states: Tensor,
        router_logits: Tensor,
        top_k: int,
        indices_type: torch.dtype | None = None,
    ) -> tuple[Tensor, Tensor]:
        """hidden_states [T, hidden], router_logits [T, X] -> weights [T, k] float32, ids [T, k]."""
        weights, ids = router_logits.float().softmax(dim=-1).topk(top_k, dim=-1)
        return weights / weights.sum(-1, keepdim=True), ids.to(indices_type or torch.long)


def register(name: str) -> None:
    """Register the strategy with vLLM in this process if `name` is its name, and not that of a
    strategy of vLLM.

    It also derives from vLLM's class, which since 0.33 has a property for kernels that route
    themselves.
    """
    if name != STRATEGY:
        return
    module: Any = importlib.import_module(_SIMULATOR)
    strategy: RoutingStrategy = type("TopK", (TopK, module.RoutingStrategy), {})()
    module.RoutingSimulator.register_strategy(STRATEGY, strategy)
