"""Memory that ends, or begins, at an unmapped page. A read one element too far faults there, in place of garbage.

On a CPU the operating system protects the page, on CUDA the driver leaves the addresses unmapped. The process dies of
such a read, so a worker makes it. The method is that of guard pages, as in ROCm/aiter#4117.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

from harness.core.errors import HarnessError

Fence = Literal["none", "before", "after"]
ALIGNMENT = 16
"""Bytes. Kernels may load words of this size, so up to 15 bytes stay between the last element and the page."""


def fenced(num_bytes: int, fence: Fence, device: str) -> Tensor:
    """A uint8 tensor [num_bytes] on `device` that begins (`before`) or ends (`after`) at memory without access.

    Raises HarnessError where the system or the driver refuses.
    """
    make = _on_cuda if torch.device(device).type == "cuda" else _on_cpu
    return make(num_bytes, fence)


def _start(room: int, num_bytes: int, fence: Fence) -> int:
    """The first byte of the tensor in `room` bytes between two fences."""
    return 0 if fence == "before" else (room - num_bytes) // ALIGNMENT * ALIGNMENT


def _on_cpu(num_bytes: int, fence: Fence) -> Tensor:
    page = mmap.PAGESIZE
    room = -(-num_bytes // page) * page
    memory = mmap.mmap(-1, room + 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    for edge in (address, address + page + room):
        # 0 is PROT_NONE: no access.
        if libc.mprotect(ctypes.c_void_p(edge), ctypes.c_size_t(page), 0):
            raise HarnessError(f"fence: the system refused to protect a page (errno {ctypes.get_errno()})")
    # The tensor keeps `memory` alive.
    return torch.frombuffer(memory, dtype=torch.uint8, offset=page + _start(room, num_bytes, fence), count=num_bytes)


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


_PINNED, _ON_DEVICE, _READ_AND_WRITE = 1, 1, 3


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _call(name: str, *arguments: Any) -> None:
    code = getattr(_driver(), name)(*arguments)
    if code:
        raise HarnessError(f"fence: {name} of the CUDA driver failed with error {code}")


class _Mapped:
    """Device memory [room] between unmapped addresses, as `torch.as_tensor` reads it."""

    def __init__(self, room: int, grain: int, properties: _Properties) -> None:
        size, zero = ctypes.c_size_t, ctypes.c_ulonglong(0)
        base, handle = ctypes.c_ulonglong(), ctypes.c_ulonglong()
        _call("cuMemAddressReserve", ctypes.byref(base), size(room + 2 * grain), size(0), zero, zero)
        _call("cuMemCreate", ctypes.byref(handle), size(room), ctypes.byref(properties), zero)
        self.address = base.value + grain
        start = ctypes.c_ulonglong(self.address)
        _call("cuMemMap", start, size(room), size(0), handle, zero)
        access = _Access(properties.location, _READ_AND_WRITE)
        _call("cuMemSetAccess", start, size(room), ctypes.byref(access), size(1))
        self.__cuda_array_interface__ = dict(
            shape=(room,), typestr="|u1", data=(self.address, False), version=3, strides=None
        )
        weakref.finalize(self, _free, base, handle, room, grain)


def _free(base: ctypes.c_ulonglong, handle: ctypes.c_ulonglong, room: int, grain: int) -> None:
    """Give the memory back. A lost device refuses, and its process is about to end."""
    driver, size = _driver(), ctypes.c_size_t
    driver.cuCtxSynchronize()
    driver.cuMemUnmap(ctypes.c_ulonglong(base.value + grain), size(room))
    driver.cuMemRelease(handle)
    driver.cuMemAddressFree(base, size(room + 2 * grain))


def _on_cuda(num_bytes: int, fence: Fence) -> Tensor:
    torch.cuda.current_stream().synchronize()
    properties = _Properties(type=_PINNED, location=_Location(_ON_DEVICE, torch.cuda.current_device()))
    grain = ctypes.c_size_t()
    _call("cuMemGetAllocationGranularity", ctypes.byref(grain), ctypes.byref(properties), ctypes.c_int(0))
    room = -(-num_bytes // grain.value) * grain.value
    whole = torch.as_tensor(_Mapped(room, grain.value, properties), device="cuda")
    start = _start(room, num_bytes, fence)
    return whole[start : start + num_bytes]
