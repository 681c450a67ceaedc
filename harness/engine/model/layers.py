"""Small layers that every block shares: RMS norm and the gated MLP."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type in which norms, gates and recurrences run: float32, or float64 for a float64 model."""
    return torch.promote_types(dtype, torch.float32)


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension (arXiv 1910.07467); output in the input's dtype."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(compute_dtype(x.dtype))
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * self.weight).to(x.dtype)


class MLP(nn.Module):
    """SwiGLU: `down(silu(gate(x)) * up(x))`, x: [..., hidden]."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out
