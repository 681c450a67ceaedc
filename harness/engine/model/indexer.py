"""The indexer of sparse attention (DeepSeek-V3.2): a small head that says which cached tokens a query attends to."""

from __future__ import annotations

from torch import Tensor, nn

from harness.engine.schedule.model_config import ModelConfig


class Indexer(nn.Module):
    """Scores of cached tokens for a query: sum over X index heads of weight * relu(query . key).

    X = index_num_heads, I = index_head_dim. All heads share one key a token, which is what an engine caches.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads = config.index_num_heads
        self.head_dim = config.index_head_dim
        self.topk = config.index_topk
        self.q_proj = nn.Linear(config.hidden_size, self.num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, self.head_dim, bias=False)
        self.weights_proj = nn.Linear(config.hidden_size, self.num_heads, bias=False)

    def keys(self, x: Tensor) -> Tensor:
        """x: [..., T, hidden] -> index keys [..., T, I]."""
        keys: Tensor = self.k_proj(x)
        return keys

    def scores(self, x: Tensor, keys: Tensor) -> Tensor:
        """x: [..., T, hidden], keys: [..., C, I] or, for each query its own, [..., T, C, I] -> [..., T, C]."""
        q = self.q_proj(x).unflatten(-1, (self.num_heads, -1))
        products = q @ (keys if keys.ndim > x.ndim else keys.unsqueeze(-3)).transpose(-1, -2)
        scaled = products.relu() * self.weights_proj(x).unsqueeze(-1)
        out: Tensor = scaled.sum(-2) * self.head_dim**-0.5
        return out
