"""A runner with vLLM's names: one layer of attention, and a projection that sums over the ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from vllm.model_executor.layers.attention.mla_attention import MLACommonImpl

METADATA: Any = SimpleNamespace(
    prefill=SimpleNamespace(chunked_context=SimpleNamespace(prefill_tokens_with_context=2))
)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.impl = MLACommonImpl()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output = torch.empty_like(x)
        self.impl.forward_mha(x, None, METADATA, output)
        return output


class SumOfRanks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        summed = x.clone()
        torch.distributed.all_reduce(summed)
        return summed


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(Attention(), SumOfRanks())])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class GPUModelRunner:
    device = torch.device("cpu")

    def load_model(self) -> None:
        self.model = Model()

    def get_model(self) -> nn.Module:
        return self.model

    def execute_model(self, scheduler_output: Any) -> bool:
        out = self.model(torch.ones(scheduler_output.total_num_scheduled_tokens, 4))
        return bool(out.isfinite().all())
