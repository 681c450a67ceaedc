"""A module that guesses the token after the next one: multi-token prediction, or a head as
Eagle's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from harness.engine.model.layers import RMSNorm
from harness.engine.model.transformer import DecoderLayer
from harness.engine.schedule.config import EngineModelConfig

Kind = Literal["mtp", "eagle"]


class NextTokenModule(nn.Module):
    """One dense MLA layer over the target's hidden state of a position and the embedding of the
    token behind it.

    An `mtp` module norms both inputs, an `eagle` head takes them as they are. H = hidden_size, V =
    vocab_size.
    """

    def __init__(self, config: EngineModelConfig, kind: Kind) -> None:
        super().__init__()
        hidden = config.hidden_size
        eps = config.rms_norm_eps
        dense = replace(config, num_layers=1, layer_types=("mla",), num_experts=0)
        self.enorm: nn.Module = RMSNorm(hidden, eps) if kind == "mtp" else nn.Identity()
        self.hnorm: nn.Module = RMSNorm(hidden, eps) if kind == "mtp" else nn.Identity()
        self.eh_proj = nn.Linear(2 * hidden, hidden, bias=False)
        self.layer = DecoderLayer(dense, "mla")
        self.norm = RMSNorm(hidden, eps)
        self.head = nn.Linear(hidden, config.vocab_size, bias=False)

    def combined(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """The layer's input [..., H] from hidden [..., H], before the target's final norm, and
        embedded [..., H].

        In the weights' dtype, such as float32.
        """
        out: Tensor = self.eh_proj(torch.cat((self.enorm(embedded), self.hnorm(hidden)), dim=-1))
        return out

    def features(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """Dense: hidden and embedded [B, T, H] of whole sequences -> what the head reads, [B, T,
        H].

        In the weights' dtype, such as float32.
        """
        positions = torch.arange(hidden.shape[1], device=hidden.device)
        out: Tensor = self.norm(self.layer(self.combined(hidden, embedded), positions))
        return out

    @torch.no_grad()
    def reset_parameters(self, seed: int) -> NextTokenModule:
        """Fill all weights from `seed`. Matrices keep the scale of activations. Returns self."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if name.endswith("norm.weight"):
                parameter.fill_(1.0)
            else:
                parameter.copy_(
                    torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5
                )
        return self
