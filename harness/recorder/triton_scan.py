"""The scan on CUDA: one launch a tensor, which stops at the live rows and writes only when something is wrong."""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import contextlib

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness.kernels.triton_interpreter import prepare
from harness.poison.sentinels import bits_view

INTERPRETED = prepare()
BLOCK = 4096
MAX_PROGRAMS = 256


@triton.jit(do_not_specialize=["slot", "num_rows", "row_stride", "limit", "capacity", "dtype"])
def _scan(
    x, live, clock, latches, first, events, count, slot, num_rows, row_stride, limit, capacity, dtype,
    K: tl.constexpr, MASK: tl.constexpr, SHIFT: tl.constexpr, NEVER: tl.constexpr, FIELDS: tl.constexpr,
    DENSE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    step = tl.load(clock) + 1
    rows = tl.load(live)
    rows = tl.where(rows < 0, num_rows, tl.minimum(rows, num_rows)).to(tl.int64)
    latch = latches + slot * FIELDS
    if (tl.program_id(0) == 0) & (rows > 0):
        tl.store(latch + 6, 1)
    best = tl.zeros((BLOCK,), tl.int64) + NEVER
    for block in range(tl.program_id(0), tl.cdiv(rows * K, BLOCK), tl.num_programs(0)):
        index = (tl.zeros((BLOCK,), tl.int64) + block) * BLOCK + tl.arange(0, BLOCK)
        is_live = index < rows * K
        # Dense rows are one stretch, which is loaded in wide words.
        place = index if DENSE else index // K * row_stride + index % K
        bits = tl.load(x + place, mask=is_live, other=0).to(tl.int64)
        bad = (bits < 0) | (bits >= limit) if MASK == 0 else (bits & MASK) == MASK
        packed = (index << 32) | ((bits >> SHIFT) & 0xFFFFFFFF)
        best = tl.minimum(best, tl.where(bad & is_live, packed, NEVER))
    least = tl.min(best, axis=0)
    if least != NEVER:
        known = tl.atomic_cas(latch, 0, step)
        is_first = (known == 0) | (known == step)
        if is_first:
            tl.atomic_min(first + slot, least)
        last = tl.atomic_xchg(latch + 1, step)
        if last != step:
            # One program of a launch comes here, and launches of a stream follow one another: places are in order.
            number = tl.atomic_add(count, 1)
            phase = tl.load(clock + 1)
            event = events + (number % capacity) * 3
            tl.store(event, slot)
            tl.store(event + 1, step - 1)
            tl.store(event + 2, phase)
            if is_first:
                tl.store(latch + 2, number)
                tl.store(latch + 3, phase)
                tl.store(latch + 4, K)
                tl.store(latch + 5, dtype)


def scan(
    x: Tensor, live: Tensor, clock: Tensor, latches: Tensor, first: Tensor, events: Tensor, count: Tensor,
    slot: int, limit: int,
) -> None:  # fmt: skip
    """As :func:`harness.recorder.scan._watch_cpu`, bit for bit, without a host read."""
    from harness.recorder.scan import DTYPES, LATCH_FIELDS, NEVER, exponent_mask

    num_rows, width = x.shape
    if not x.numel():
        return
    mask = 0 if limit >= 0 else exponent_mask(x.dtype)
    shift = 32 if mask and x.element_size() == 8 else 0
    programs = min(MAX_PROGRAMS, triton.cdiv(num_rows * width, BLOCK))
    with torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext():
        _scan[(programs,)](
            bits_view(x) if mask else x, live, clock, latches, first, events, count, slot, num_rows, x.stride(0),
            limit, events.shape[0], DTYPES.index(x.dtype), K=width, MASK=mask, SHIFT=shift, NEVER=NEVER,
            FIELDS=LATCH_FIELDS, DENSE=num_rows == 1 or x.stride(0) == width, BLOCK=BLOCK, num_warps=8,
        )  # fmt: skip
