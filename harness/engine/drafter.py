"""A drafter: a small head that guesses the token after the next, as a graph of its own in the target's pool."""

from __future__ import annotations

import torch

from harness.graph.interface import Graph, GraphPool
from harness.model.transformer import CausalLM


class Drafter:
    """Guesses from the target's hidden state. Its weights are the target's own output head behind a fixed mixing."""

    def __init__(self, model: CausalLM, max_size: int, pool: GraphPool) -> None:
        hidden = model.config.hidden_size
        generator = torch.Generator().manual_seed(0)
        device = model.embed_tokens.weight.device
        self._mixing = (torch.randn(hidden, hidden, generator=generator) * hidden**-0.5).to(device)
        self._model = model
        self._pool = pool
        self._static = torch.zeros(max_size, hidden, device=device)
        self._graphs: dict[int, Graph] = {}

    def capture(self, size: int) -> None:
        """Capture the drafter for a batch of `size`."""
        hidden = self._static[:size]
        self.forward(hidden)
        self._graphs[size] = self._pool.capture(lambda: self.forward(hidden))

    def replay(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [B, hidden], outputs of a target graph of the same size -> draft tokens [B]."""
        graph = self._graphs[hidden.shape[0]]
        # The target's outputs are pool memory, which this replay may reuse, so its input is a copy.
        self._static[: hidden.shape[0]] = hidden
        graph.replay()
        drafts: torch.Tensor = graph.outputs
        return drafts.clone()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [B, hidden] -> draft tokens [B] int64."""
        mixed = torch.tanh(hidden @ self._mixing)
        return self._model.compute_logits(mixed).argmax(dim=-1)
