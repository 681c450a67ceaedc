"""The reference of `quantize_fp8`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from harness.ops.parts.attention import E4M3_MAX, NAN


class Quantized(NamedTuple):
    """x8 before its rounding to e4m3 (NaN in padded rows), the scale, and the live rows."""

    scaled: Tensor
    scale: Tensor
    live: Tensor


def expected(x: Tensor, num_live: int, *, blocks: int = 0) -> Quantized:
    """Quantization of the first `num_live` rows of x [T, K] in float64, by one scale [1], or by
    `blocks` scales a row [T, G].

    Rows from `num_live` on are NaN and not defined [T] bool.
    """
    live = x[:num_live].double().reshape(num_live * blocks or 1, -1)
    amax = live.abs().amax(dim=1, keepdim=True)
    live_scale = torch.where(amax == 0, 1.0, amax / E4M3_MAX)
    scaled = torch.full(x.shape, NAN, dtype=torch.float64, device=x.device)
    scaled[:num_live] = (live / live_scale).reshape(num_live, -1)
    scale = live_scale.reshape(1) if not blocks else scaled.new_full((x.shape[0], blocks), NAN)
    if blocks:
        scale[:num_live] = live_scale.reshape(num_live, blocks)
    defined = torch.arange(x.shape[0], device=x.device) < num_live
    return Quantized(scaled, scale, defined)
