"""The kernel and its bug of the past."""

import torch
from torch import Tensor

from harness.api import seam


@seam("rowquant.padding-in-amax")
def live_rows(x: Tensor, num_live: int | Tensor | None) -> Tensor:
    """The rows [num_live, K] of x [T, K] that the scale covers."""
    return x if num_live is None else x[: int(num_live)]


def all_rows(x: Tensor, num_live: int | Tensor | None) -> Tensor:
    """The bug: all rows [T, K], padding included."""
    return x


def quantize_fp8(x: Tensor, *, num_live: int | Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Quantize x [T, K] -> x8 [T, K] float8_e4m3fn and its scale [1] float32."""
    amax = live_rows(x, num_live).float().abs().amax().reshape(1)
    scale = torch.where(amax == 0, 1.0, amax / 448)
    return (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale
