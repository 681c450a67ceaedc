"""vLLM's routing simulator with a strategy that routes rightly: the path of vllm-project/vllm#38359 with right answers.

vLLM's own strategies draw experts at random, so that no answer is right and none can be judged. This one takes the
same steps (a strategy of `RoutingSimulator`, 64-bit ids unless the experts ask for another type) and picks the
experts that the model's router would.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from harness.engines.vllm.objects import RoutingStrategy
from harness.engines.vllm.serve.settings import STRATEGY

_SIMULATOR = "vllm.model_executor.layers.fused_moe.router.routing_simulator_router"


class TopK:
    """Greedy top-k of the softmax, renormalised, as `engine.model.moe.route`; ids as wide as vLLM's strategies'."""

    def route_tokens(
        self, hidden_states: Tensor, router_logits: Tensor, top_k: int, indices_type: torch.dtype | None = None
    ) -> tuple[Tensor, Tensor]:
        """hidden_states [T, hidden], router_logits [T, X] -> weights [T, k] float32, ids [T, k]."""
        weights, ids = router_logits.float().softmax(dim=-1).topk(top_k, dim=-1)
        return weights / weights.sum(-1, keepdim=True), ids.to(indices_type or torch.long)


def register() -> None:
    """Make the strategy known to this process's vLLM, which the environment variable then names.

    It is one of vLLM's own class too, which since 0.33 answers whether a strategy suits kernels that route themselves.
    """
    module: Any = importlib.import_module(_SIMULATOR)
    strategy: RoutingStrategy = type("TopK", (TopK, module.RoutingStrategy), {})()
    simulator: Any = importlib.import_module(_SIMULATOR).RoutingSimulator
    simulator.register_strategy(STRATEGY, strategy)
