"""Memory that ends, or begins, at an unmapped page.

A read one element too far faults there, in place of garbage.

On a CPU the operating system protects the page, on CUDA the driver leaves the addresses unmapped.
The process dies of such a read, so a worker makes it. The method is that of guard pages, as in
ROCm/aiter#4117.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Literal

import torch
from torch import Tensor

from torch_poison.device_ranges import between_gaps, part_of
from torch_poison.errors import PoisonError

Fence = Literal["none", "before", "after", "exact"]
ALIGNMENT = 16
"""Bytes.

Kernels may load words of this size, so with `after` up to 15 bytes stay between the last element
and the page. They are NaN as floats and -1 as integers, so a value that is used shows. With `exact`
none stay: for kernels that load no further than their elements.
"""
SLACK = 0xFF
"""What each of these bytes holds."""


def fenced(num_bytes: int, fence: Fence, device: str) -> Tensor:
    """A uint8 tensor [num_bytes] on `device` that begins (`before`) or ends (`after`, `exact`) at
    memory without access. Its storage has these bytes alone, so a view of the storage stays at the
    fence.

    Raises PoisonError where the system or the driver refuses.
    """
    make = _on_cuda if torch.device(device).type == "cuda" else _on_cpu
    return make(num_bytes, fence)


def _start(room: int, num_bytes: int, fence: Fence) -> int:
    """The first byte of the tensor in `room` bytes between two fences."""
    if fence == "exact":
        return room - num_bytes
    # Rounded down to a word: a start that no allocator returns would fault kernels that load words
    # of 16 bytes and are right.
    return 0 if fence == "before" else (room - num_bytes) // ALIGNMENT * ALIGNMENT


def _on_cpu(num_bytes: int, fence: Fence) -> Tensor:
    page = mmap.PAGESIZE
    room = -(-num_bytes // page) * page
    memory = mmap.mmap(-1, room + 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    # Both edges are protected, so that one mapping serves either fence and a far overrun faults
    # too.
    for edge in (address, address + page + room):
        # 0 is PROT_NONE: no access.
        if libc.mprotect(ctypes.c_void_p(edge), ctypes.c_size_t(page), 0):
            raise PoisonError(
                f"fence: the system refused to protect a page (errno {ctypes.get_errno()})"
            )
    start = _start(room, num_bytes, fence)
    _fill_slack(
        torch.frombuffer(memory, dtype=torch.uint8, offset=page, count=room), start, num_bytes
    )
    # The tensor keeps `memory` alive.
    return torch.frombuffer(memory, dtype=torch.uint8, offset=page + start, count=num_bytes)


def _on_cuda(num_bytes: int, fence: Fence) -> Tensor:
    whole = between_gaps(num_bytes)
    start = _start(len(whole), num_bytes, fence)
    _fill_slack(whole, start, num_bytes)
    return part_of(whole, start, num_bytes)


def _fill_slack(whole: Tensor, start: int, num_bytes: int) -> None:
    whole[start + num_bytes : start + num_bytes + ALIGNMENT] = SLACK
