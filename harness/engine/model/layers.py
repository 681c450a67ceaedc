"""Small layers that every block shares: RMS norm, the gated MLP, and rotary position embedding."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of norms, gates and recurrences: float32, or float64 for a float64 model."""
    return torch.promote_types(dtype, torch.float32)


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension (arXiv 1910.07467), in the input's dtype."""

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


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary position embedding (arXiv 2104.09864), interleaved as DeepSeek's (`is_neox_style=False`).

    x: [..., T, *, E] with even E; `positions` broadcasts against `x.shape[:-1]`, for example [T, 1] for x [T, H, E].
    Returns the same shape and dtype; angles and products are float32 or wider.
    """
    wide = compute_dtype(x.dtype)
    dim = x.shape[-1]
    exponents = torch.arange(0, dim, 2, device=x.device, dtype=wide) / dim
    angles = positions.to(wide).unsqueeze(-1) * theta**-exponents
    cos, sin = angles.cos(), angles.sin()
    even, odd = x[..., 0::2].to(wide), x[..., 1::2].to(wide)
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2).to(x.dtype)
