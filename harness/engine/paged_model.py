"""The model as a server runs it: the same weights as `harness.model`, on paged memory and replaceable kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.engine.attention import PagedMLA
from harness.engine.batch import Batch
from harness.engine.experts import RoutedExperts
from harness.engine.kernels import Kernels
from harness.engine.linear_attention import PagedKDA
from harness.engine.memory import PagedMemory
from harness.engine.quantize import ActivationQuantizer
from harness.model.mla import MLAAttention
from harness.model.moe import MoE
from harness.model.transformer import CausalLM, DecoderLayer
from harness.poison.patterns import Poison
from harness.scenario.params import EngineParams


@dataclass(slots=True)
class Forwarded:
    """What a forward gives: hidden [T, hidden] before the final norm, logits [T, vocab], and the experts used.

    `expert_ids` has [T, k] int32 for each layer with experts.
    """

    hidden: torch.Tensor
    logits: torch.Tensor
    expert_ids: list[torch.Tensor]


class PagedModel:
    """A `CausalLM` whose attention, quantization and routing go through kernels under test."""

    def __init__(self, model: CausalLM, params: EngineParams, kernels: Kernels, poison: Poison) -> None:
        self.model = model
        self.kernels = kernels
        self._quantize = ActivationQuantizer(None if params.quantize == "none" else kernels.quantize_fp8)
        self._attention: list[PagedMLA | PagedKDA] = []
        self._experts: list[RoutedExperts | None] = []
        for index, layer in enumerate(self._layers()):
            attention = layer.self_attn
            self._attention.append(
                PagedMLA(attention, index, kernels, self._quantize, params.context_chunk)
                if isinstance(attention, MLAAttention)
                else PagedKDA(attention, index)
            )
            self._experts.append(RoutedExperts(layer.mlp, kernels, poison) if isinstance(layer.mlp, MoE) else None)

    def forward(self, batch: Batch, memory: PagedMemory) -> Forwarded:
        """Run a batch on `memory`, which it changes. Reads device values on no host, so a decode can be captured."""
        x = batch.hidden
        expert_ids: list[torch.Tensor] = []
        for layer, attend, experts in zip(self._layers(), self._attention, self._experts, strict=True):
            x = x + attend(layer.input_layernorm(x), batch, memory)
            normed = layer.post_attention_layernorm(x)
            if experts is None:
                x = x + layer.mlp(self._quantize(normed, batch))
            else:
                mixed, ids = experts(normed, batch, self._quantize)
                expert_ids.append(ids)
                x = x + mixed
        return Forwarded(x, self.model.compute_logits(x), expert_ids)

    def _layers(self) -> list[DecoderLayer]:
        return [layer for layer in self.model.layers if isinstance(layer, DecoderLayer)]
