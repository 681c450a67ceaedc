"""The scan on CUDA: one launch for one or two results of an op, which writes only if it finds a bad
element.

A decode step has hundreds of scans, one after another, so a launch that finds nothing must end
soon. It tests all its elements in their own type and reads no other device value before them. Only
if one is bad, a second pass finds the first one.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch_poison.patterns import EXPONENT, bits_view

from harness.memory.first_nan.latch import DTYPES, LATCH_FIELDS, NEVER
from harness.memory.triton_interpreter import prepare

INTERPRETED = prepare()
BLOCK = 2048
MAX_PROGRAMS = 256
NUM_WARPS = 8
INT32_ELEMENTS = 2**31 - BLOCK * MAX_PROGRAMS
"""Tensors with fewer elements than this are indexed in 32 bits."""


@triton.jit
def _is_bad(bits, limit, MASK: tl.constexpr):
    return (bits < 0) | (bits >= limit) if MASK == 0 else (bits & MASK) == MASK


@triton.jit
def _place(index, row_stride, K: tl.constexpr, DENSE: tl.constexpr):
    # Dense rows are one stretch, which is loaded in wide words.
    return index if DENSE else index // K * row_stride + index % K


@triton.jit
def _look(
    program, programs, x, live, clock, latches, first, events, count, slot, num_rows, row_stride,
    limit, capacity,
    dtype, K: tl.constexpr, MASK: tl.constexpr, SHIFT: tl.constexpr, DENSE: tl.constexpr,
    WIDE: tl.constexpr,
    NEVER: tl.constexpr, FIELDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # Loaded first and used last. The loop loads all rows, live or not, so it does not wait for
    # this.
    rows = tl.load(live)
    rows = tl.where(rows < 0, num_rows, tl.minimum(rows, num_rows))
    latch = latches + slot * FIELDS
    # 64-bit indices cost registers; few tensors need them.
    if WIDE:
        size = num_rows.to(tl.int64) * K
        num_live = rows.to(tl.int64) * K
    else:
        size = num_rows * K
        num_live = rows * K
    some = tl.zeros((BLOCK,), tl.int1)
    for block in range(program, tl.cdiv(size, BLOCK), programs):
        index = block * BLOCK + tl.arange(0, BLOCK)
        bits = tl.load(x + _place(index, row_stride, K, DENSE), mask=index < size, other=0)
        some = some | (_is_bad(bits, limit, MASK) & (index < num_live))
    if (program == 0) & (rows > 0):
        tl.store(latch + 6, 1)
    if tl.max(some.to(tl.int32), axis=0) != 0:
        step = tl.load(clock) + 1
        # A second pass, for a tensor that is bad: clean ones, nearly all, pay for the first alone.
        best = tl.zeros((BLOCK,), tl.int64) + NEVER
        for block in range(program, tl.cdiv(size, BLOCK), programs):
            index = (tl.zeros((BLOCK,), tl.int64) + block) * BLOCK + tl.arange(0, BLOCK)
            bits = tl.load(x + _place(index, row_stride, K, DENSE), mask=index < num_live, other=0)
            packed = (index << 32) | ((bits.to(tl.int64) >> SHIFT) & 0xFFFFFFFF)
            best = tl.minimum(
                best, tl.where(_is_bad(bits, limit, MASK) & (index < num_live), packed, NEVER)
            )
        # Programs of one launch race for the latch. All of the first bad step may lower the index,
        # later steps may not.
        known = tl.atomic_cas(latch, 0, step)
        is_first = (known == 0) | (known == step)
        if is_first:
            tl.atomic_min(first + slot, tl.min(best, axis=0))
        # One event a step, whichever program comes first.
        last = tl.atomic_xchg(latch + 1, step)
        if last != step:
            # One program comes here for each result, and launches of a stream follow one another:
            # places are in order.
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


_RUNTIME = ["slot", "num_rows", "row_stride", "limit", "capacity", "dtype"]
"""Arguments that change from call to call, so that a kernel is not compiled for each value."""


@triton.jit(do_not_specialize=_RUNTIME)
def _scan(
    live, clock, latches, first, events, count, capacity, x, slot, num_rows, row_stride, limit,
    dtype,
    K: tl.constexpr, MASK: tl.constexpr, SHIFT: tl.constexpr, DENSE: tl.constexpr,
    WIDE: tl.constexpr,
    NEVER: tl.constexpr, FIELDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    _look(
        tl.program_id(0),
        tl.num_programs(0),
        x,
        live,
        clock,
        latches,
        first,
        events,
        count,
        slot,
        num_rows,
        row_stride,
        limit,
        capacity,
        dtype,
        K,
        MASK,
        SHIFT,
        DENSE,
        WIDE,
        NEVER,
        FIELDS,
        BLOCK,
    )


@triton.jit(
    do_not_specialize=[
        *_RUNTIME,
        "y_slot",
        "y_num_rows",
        "y_row_stride",
        "y_limit",
        "y_dtype",
        "programs",
    ]
)
def _scan_two(
    live, clock, latches, first, events, count, capacity, x, slot, num_rows, row_stride, limit,
    dtype,
    y, y_slot, y_num_rows, y_row_stride, y_limit, y_dtype, programs,
    K: tl.constexpr, MASK: tl.constexpr, SHIFT: tl.constexpr, DENSE: tl.constexpr,
    WIDE: tl.constexpr,
    Y_K: tl.constexpr, Y_MASK: tl.constexpr, Y_SHIFT: tl.constexpr, Y_DENSE: tl.constexpr,
    Y_WIDE: tl.constexpr,
    NEVER: tl.constexpr, FIELDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    # The first programs of the grid scan x, the others y, each by their share of the grid.
    if program < programs:
        _look(
            program,
            programs,
            x,
            live,
            clock,
            latches,
            first,
            events,
            count,
            slot,
            num_rows,
            row_stride,
            limit,
            capacity,
            dtype,
            K,
            MASK,
            SHIFT,
            DENSE,
            WIDE,
            NEVER,
            FIELDS,
            BLOCK,
        )
    else:
        _look(
            program - programs,
            tl.num_programs(0) - programs,
            y,
            live,
            clock,
            latches,
            first,
            events,
            count,
            y_slot,
            y_num_rows,
            y_row_stride,
            y_limit,
            capacity,
            y_dtype,
            Y_K,
            Y_MASK,
            Y_SHIFT,
            Y_DENSE,
            Y_WIDE,
            NEVER,
            FIELDS,
            BLOCK,
        )


def scan(xs: list[Tensor], *rest: Any) -> None:
    """As :func:`harness.memory.first_nan.table._watch_cpu`, bit for bit, without a host read.

    xs [rows, K] are of float types such as bfloat16, or int32; the rest are the table's tensors,
    int64 or int32.
    """
    live, clock, latches, first, events, count, slots, limits = rest
    given = [
        _Given.of(x, slot, limit)
        for x, slot, limit in zip(xs, slots, limits, strict=True)
        if x.numel()
    ]
    shared = (live, clock, latches, first, events, count, events.shape[0])
    constants = {"NEVER": NEVER, "FIELDS": LATCH_FIELDS, "BLOCK": BLOCK, "num_warps": NUM_WARPS}
    # Two results share a launch: a step has hundreds of scans, and nearly all find nothing.
    for one, *two in (given[start : start + 2] for start in range(0, len(given), 2)):
        with (
            # Triton launches on the current device, which need not be the tensor's.
            torch.cuda.device(one.arguments[0].device)
            if one.arguments[0].is_cuda
            else contextlib.nullcontext()
        ):
            if not two:
                _scan[(one.programs,)](*shared, *one.arguments, **one.constants, **constants)
                continue
            of_y = {f"Y_{name}": value for name, value in two[0].constants.items()}
            _scan_two[(one.programs + two[0].programs,)](
                *shared,
                *one.arguments,
                *two[0].arguments,
                one.programs,
                **one.constants,
                **of_y,
                **constants,
            )


@dataclass(frozen=True, slots=True)
class _Given:
    """The arguments of a launch for one tensor [rows, K]."""

    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    programs: int

    @classmethod
    def of(cls, x: Tensor, slot: int, limit: int) -> _Given:
        """The arguments of a scan of x [rows, width], a float type such as bfloat16, or int32 with
        a `limit`.
        """
        num_rows, width = x.shape
        mask = 0 if limit >= 0 else EXPONENT[x.dtype]
        shift = 32 if mask and x.element_size() == 8 else 0
        # Rows that lie apart span more than their elements, and offsets must hold the span.
        span = (num_rows - 1) * x.stride(0) + width
        constants = {
            "K": width,
            "MASK": mask,
            "SHIFT": shift,
            "DENSE": num_rows == 1 or x.stride(0) == width,
            "WIDE": max(x.numel(), span) >= INT32_ELEMENTS,
        }
        values = bits_view(x) if mask else x
        arguments = (values, slot, num_rows, x.stride(0), limit, DTYPES.index(x.dtype))
        return cls(arguments, constants, min(MAX_PROGRAMS, triton.cdiv(num_rows * width, BLOCK)))
