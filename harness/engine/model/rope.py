"""Rotary position embedding (arXiv 2104.09864), interleaved as DeepSeek's (`is_neox_style=False`)."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.engine.model.layers import compute_dtype


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotate the pairs (0, 1), (2, 3), ... of the last dimension by an angle that grows with the position.

    x: [..., T, *, E] where `positions` broadcasts against `x.shape[:-1]`, for example x [T, H, E] with
    positions [T, 1]; E even. Returns the same shape and dtype; angles and products are float32 or wider.
    """
    wide = compute_dtype(x.dtype)
    dim = x.shape[-1]
    exponents = torch.arange(0, dim, 2, device=x.device, dtype=wide) / dim
    angles = positions.to(wide).unsqueeze(-1) * theta**-exponents
    cos, sin = angles.cos(), angles.sin()
    even, odd = x[..., 0::2].to(wide), x[..., 1::2].to(wide)
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2).to(x.dtype)
