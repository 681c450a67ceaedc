"""A scan as an op of torch, `mla_harness::watch`: plain torch on a CPU, a Triton launch for two tensors on CUDA.

Captures, `torch.compile` and a CPU's recordings keep an op. It changes the recorder's buffers, so none of them may drop
it. On CUDA it has no host read.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from harness.memory.first_nan.latch import DTYPES
from harness.memory.poison.sentinels import EXPONENT, bits_view

_library = Library("mla_harness", "FRAGMENT")
_library.define(
    "watch(Tensor[] xs, Tensor live, Tensor clock, Tensor(a!) latches, Tensor(b!) first, Tensor(c!) events, "
    "Tensor(d!) count, int[] slots, int[] limits) -> ()"
)


def can_watch(tensor: Tensor) -> bool:
    """Whether there is a scan for a tensor of this type."""
    return tensor.dtype in EXPONENT and tensor.numel() > 0 and tensor.ndim > 0


def rows_of(tensor: Tensor, axis: int | None = 0) -> Tensor:
    """`tensor` as [rows, K] with dense rows, a view where it can be one; `axis` None makes the whole one row."""
    tensor = tensor.detach()
    if axis is None:
        return tensor.reshape(1, -1)
    if axis:
        tensor = tensor.movedim(axis, 0)
    flat = tensor.reshape(tensor.shape[0], -1)
    return flat if flat.shape[1] == 1 or flat.stride(1) == 1 else flat.contiguous()


def _watch_cpu(xs: list[Tensor], *rest: Any) -> None:
    """Scan the results of one op, each [rows, K], into its slot. Arguments as in the schema of the op."""
    live, clock, latches, first, events, count, slots, limits = rest
    for x, slot, limit in zip(xs, slots, limits, strict=True):
        _watch_one(x, live, clock, latches, first, events, count, slot, limit)


def _watch_one(
    x: Tensor, live: Tensor, clock: Tensor, latches: Tensor, first: Tensor, events: Tensor, count: Tensor,
    slot: int, limit: int,
) -> None:  # fmt: skip
    """Note the first bad element of x [rows, K] in its first `live` [1] int32 rows (negative: in all rows).

    A bad value is not finite, or with a `limit` >= 0 an integer outside 0 .. limit - 1. `clock` [2] int32 is step and
    phase. `latches` [W, 7] int32, `first` [W] int64 (flat index << 32 | bits), `events` [C, 3] int32 and `count` [1]
    int32 belong to :class:`harness.memory.first_nan.table.Table`.
    """
    num_live = int(live[0])
    latch = latches[slot]
    if num_live:
        latch[6] = 1
    if num_live >= 0:
        x = x[:num_live]
    if limit >= 0:
        bad = (x < 0) | (x >= limit)
    else:
        mask = EXPONENT[x.dtype]
        bad = (bits_view(x) & mask) == mask
    if not bool(bad.any()):
        return
    step, phase = (int(value) for value in clock)
    index = int(bad.flatten().to(torch.uint8).argmax())
    value = x[index // x.shape[1], index % x.shape[1]].reshape(1)
    bits = int((value if limit >= 0 else bits_view(value)).item())
    if x.element_size() == 8 and limit < 0:
        bits >>= 32
    is_first = int(latch[0]) in (0, step + 1)
    if is_first:
        latch[0] = step + 1
        first[slot] = min(int(first[slot]), (index << 32) | (bits & 0xFFFFFFFF))
    if int(latch[1]) == step + 1:
        return
    latch[1] = step + 1
    place = int(count[0])
    count += 1
    events[place % events.shape[0]] = torch.tensor((slot, step, phase), dtype=torch.int32)
    if is_first:
        latch[2:6] = torch.tensor((place, phase, x.shape[1], DTYPES.index(x.dtype)), dtype=torch.int32)


def _watch_cuda(*args: Any) -> None:
    from harness.memory.first_nan.triton_scan import scan

    scan(*args)


def _watch_fake(*args: object) -> None:
    """What tracing sees: nothing is computed."""


_library.impl("watch", _watch_cpu, "CPU")
_library.impl("watch", _watch_cuda, "CUDA")
_library.impl("watch", _watch_fake, "Meta")
