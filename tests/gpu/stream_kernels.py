"""Kernels of `merge_attn_states` that work on a stream of their own, or copy from pinned memory.

`side-waits` is sound. `side-reads` does not wait for its caller's stream. `side-leaves` lets its
caller go on before its slow work has ended. `host-waits` waits for its copy before it changes
pinned memory, `host-rewrites` does not.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness import kernel
from harness.ops.merge_attn_states.kernels.triton import merge_attn_states

SLOW_CYCLES = 1_000_000


@cache
def _side() -> torch.cuda.Stream:
    return torch.cuda.Stream()


def _on_the_side(
    sides: tuple[Tensor, ...], *, waits: bool, joins: bool, **more: Any
) -> tuple[Tensor, Tensor]:
    caller = torch.cuda.current_stream()
    if waits:
        _side().wait_stream(caller)
    with torch.cuda.stream(_side()):
        if not joins:
            torch.cuda._sleep(SLOW_CYCLES)
        out, lse = merge_attn_states(*sides, **more)
    if joins:
        caller.wait_stream(_side())
    for output in (out, lse):
        output.record_stream(caller)
    return out, lse


@triton.jit
def _copy(address, target, size, width, row_step, column_step, BLOCK: tl.constexpr):
    source = tl.load(address).to(tl.pointer_type(tl.float32))
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(source + at // width * row_step + at % width * column_step, mask=at < size)
    tl.store(target + at, values, mask=at < size)


@cache
def _pinned() -> tuple[Tensor, torch.cuda.Event]:
    """The address of an input, [1024] int64 times, in pinned memory, and the event behind its
    latest copy.
    """
    return torch.zeros(1024, dtype=torch.int64).pin_memory(), torch.cuda.Event()


def _by_address(sides: tuple[Tensor, ...], *, waits: bool, **more: Any) -> tuple[Tensor, Tensor]:
    pinned, copied = _pinned()
    if waits:
        copied.synchronize()
    pinned.fill_(sides[3].data_ptr())
    address = pinned.to(sides[3].device, non_blocking=True)
    copied.record()
    suffix_lse = torch.empty(sides[3].shape, dtype=torch.float32, device=sides[3].device)
    size, block = suffix_lse.numel(), 256
    if size:
        steps = (suffix_lse.shape[1], *sides[3].stride())
        _copy[(triton.cdiv(size, block),)](address, suffix_lse, size, *steps, BLOCK=block)
    return merge_attn_states(*sides[:3], suffix_lse, **more)


def _register(name: str, launch: Any, **options: bool) -> None:
    def merge(
        prefix_out: Tensor,
        prefix_lse: Tensor,
        suffix_out: Tensor,
        suffix_lse: Tensor,
        *,
        num_tokens_with_context: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        sides = (prefix_out, prefix_lse, suffix_out, suffix_lse)
        return launch(sides, num_tokens_with_context=num_tokens_with_context, **options)

    kernel(op="merge_attn_states", name=name, devices=("cuda",))(merge)


_register("side-waits", _on_the_side, waits=True, joins=True)
_register("side-reads", _on_the_side, waits=False, joins=True)
_register("side-leaves", _on_the_side, waits=True, joins=False)
_register("host-waits", _by_address, waits=True)
_register("host-rewrites", _by_address, waits=False)
