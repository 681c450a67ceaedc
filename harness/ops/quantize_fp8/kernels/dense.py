"""fp8 activations in torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_poison.allocations import only_writes

from harness.kernels.checks import check_range
from harness.ops.parts.block_codes import E4M3_MAX


def quantize_fp8(x: Tensor, *, num_live: int | Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Per-tensor quantization. The maximum propagates NaN, as in torch and Triton (kernel `torch`).

    x [T, K] bfloat16 or float32, num_live: the number of live rows, an int or an int tensor [1]
    (None: T) -> x8 [T, K] float8_e4m3fn, scale [1] float32, with x ~ x8 * scale. Every row is
    quantized. The maximum covers live rows only. Without a live row, or with zeros only, the scale
    is 1.
    """
    return _quantize(x, live_magnitudes(x, num_live).amax().reshape(1))


def quantize_fp8_fmax(x: Tensor, *, num_live: int | Tensor | None = None) -> tuple[Tensor, Tensor]:
    """As `quantize_fp8`, with a maximum that drops NaN, as CUDA's fmaxf does (kernel `torch-fmax`).

    x [T, K] bfloat16 or float32, num_live an int or [1] int32 -> x8 [T, K] float8_e4m3fn, scale [1]
    float32.
    """
    magnitudes = live_magnitudes(x, num_live)
    return _quantize(x, magnitudes.masked_fill(magnitudes.isnan(), 0.0).amax().reshape(1))


def quantize_fp8_per_token(
    x: Tensor, *, num_live: int | Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """One scale a row: no row spoils another, so `num_live` is not used (kernel `per-token`).

    x [T, K] bfloat16 or float32, num_live an int or [1] int32 -> x8 [T, K] float8_e4m3fn,
    scale [T, 1] float32.
    """
    _check_count(x, num_live)
    return _quantize(x, x.float().abs().amax(dim=1, keepdim=True))


@only_writes
def live_magnitudes(x: Tensor, num_live: int | Tensor | None) -> Tensor:
    """abs(x) [T, K] float32 of x [T, K], 0 in rows at or past num_live, an int or [1] int32.

    A padded row may hold NaN, and a maximum over all rows would make the scale of live ones NaN.
    """
    magnitudes = x.float().abs()
    _check_count(x, num_live)
    if num_live is None:
        return magnitudes
    live = torch.arange(x.shape[0], device=x.device) < num_live
    return magnitudes.masked_fill(~live[:, None], 0.0)


def _check_count(x: Tensor, num_live: int | Tensor | None) -> None:
    if isinstance(num_live, int):
        check_range("num_live", num_live, 0, len(x))


def _quantize(x: Tensor, amax: Tensor) -> tuple[Tensor, Tensor]:
    x8 = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty(amax.shape, dtype=torch.float32, device=x.device)
    _store_quantized(x8, scale, x, amax)
    return x8, scale


@only_writes
def _store_quantized(x8: Tensor, scale: Tensor, x: Tensor, amax: Tensor) -> None:
    """Write x8 [T, K] float8_e4m3fn and the scale [1] or [T, 1] float32 of x [T, K] and its largest
    magnitudes, of the scale's shape.
    """
    scale.copy_(torch.where(amax == 0, 1.0, amax / E4M3_MAX))
    # Rows of padding may be larger than the maximum. The clamp saturates them, and keeps a NaN.
    x8.copy_((x.float() / scale).clamp(-E4M3_MAX, E4M3_MAX))
