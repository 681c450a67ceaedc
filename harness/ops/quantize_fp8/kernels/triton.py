"""`quantize_fp8` in Triton: a per-tensor scale over live rows, in two launches and without a host
read.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness.kernels.checks import check_dense, check_range
from harness.memory.triton_interpreter import prepare

INTERPRETED = prepare()
BLOCK = 4096
# Each program of the second launch reduces all of them, so there may not be many.
MAX_PARTIALS = 1024


@triton.jit
def _amax_bits(
    x, num_live, constant_live, partials, stride, num_blocks, K: tl.constexpr, BLOCK: tl.constexpr
):
    live = constant_live
    if num_live is not None:
        live = tl.minimum(tl.load(num_live).to(tl.int32), constant_live)
    # Magnitudes have the same order as integers, and there NaN is above infinity. A float maximum
    # may drop NaN (CUDA's fmax does), and the scale would be finite.
    largest = tl.zeros((BLOCK,), tl.int32)
    for block in range(tl.program_id(0), num_blocks, tl.num_programs(0)):
        index = (tl.zeros((BLOCK,), tl.int64) + block) * BLOCK + tl.arange(0, BLOCK)
        row = index // K
        value = tl.load(x + row * stride + index % K, mask=row < live, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, value.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    # A partial for each program and no atomic: the result must be the same bits in each launch.
    tl.store(partials + tl.program_id(0), tl.max(largest, axis=0))


@triton.jit
def _scale_rows(
    x,
    partials,
    x8,
    scale,
    num_rows,
    stride,
    num_partials,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTIALS: tl.constexpr,
):
    part = tl.arange(0, PARTIALS)
    bits = tl.load(partials + part, mask=part < num_partials, other=0)
    amax = tl.max(bits, axis=0).to(tl.float32, bitcast=True)
    # A batch of zeros would divide 0 by 0.
    factor = tl.where(amax == 0.0, 1.0, tl.div_rn(amax, 448.0))
    if tl.program_id(0) == 0:
        tl.store(scale, factor)
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = index // K
    value = tl.load(x + row * stride + index % K, mask=row < num_rows, other=0.0).to(tl.float32)
    value = tl.div_rn(value, tl.zeros((BLOCK,), tl.float32) + factor)
    # Selects saturate and keep a NaN.
    value = tl.where(value > 448.0, 448.0, value)
    value = tl.where(value < -448.0, -448.0, value)
    tl.store(x8 + index, value.to(tl.float8e4nv), mask=row < num_rows)


def quantize_fp8(x: Tensor, *, num_live: int | Tensor | None = None) -> tuple[Tensor, Tensor]:
    """As :func:`harness.ops.quantize_fp8.kernels.dense.quantize_fp8`: a NaN in a live row makes the
    scale NaN.

    x [T, K] bfloat16 or float32, num_live an int or [1] int32 on the device -> x8 [T, K]
    float8_e4m3fn, scale [1] float32. Raises ValueError unless the last dimension of x is dense.
    """
    num_rows, width = x.shape
    check_dense("x", x)
    x8 = torch.empty((num_rows, width), dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty(1, dtype=torch.float32, device=x.device)
    num_blocks = triton.cdiv(num_rows * width, BLOCK)
    num_partials = max(1, min(num_blocks, MAX_PARTIALS))
    partials = torch.empty(num_partials, dtype=torch.int32, device=x.device)
    # A count on the device is read there. The kernel takes the smaller of the two.
    live = num_live if isinstance(num_live, int) else num_rows
    check_range("num_live", live, 0, num_rows)
    live_tensor = num_live if isinstance(num_live, Tensor) else None
    _amax_bits[(num_partials,)](
        x, live_tensor, live, partials, x.stride(0), num_blocks, K=width, BLOCK=BLOCK, num_warps=8
    )
    padded_partials = triton.next_power_of_2(num_partials)
    _scale_rows[(max(1, num_blocks),)](
        x,
        partials,
        x8,
        scale,
        num_rows,
        x.stride(0),
        num_partials,
        width,
        BLOCK,
        padded_partials,
        num_warps=8,
    )
    return x8, scale
