"""Ranges of device addresses with memory at some parts only, by the virtual memory management
of CUDA's driver.

A range costs no memory. A part of it gets some in whole grains, 2 MiB on present GPUs. An access to
the rest faults.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from torch_poison.errors import PoisonError

Piece = tuple[int, int]
"""The first byte of a part of a range, and the number of its bytes."""


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


# Values of the driver's enums: CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE,
# CU_MEM_ACCESS_FLAGS_PROT_READWRITE.
_PINNED = 1
_ON_DEVICE = 1
_READ_AND_WRITE = 3


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _call(name: str, *arguments: Any) -> None:
    code = getattr(_driver(), name)(*arguments)
    if code:
        raise PoisonError(f"{name} of the CUDA driver failed with error {code}")


class _Range:
    """Reserved addresses with memory at `pieces`; `torch.as_tensor` reads the bytes of
    `shown`.
    """

    def __init__(
        self, size: int, pieces: Sequence[Piece], shown: Piece, properties: _Properties
    ) -> None:
        count = ctypes.c_size_t
        zero = ctypes.c_ulonglong(0)
        base = ctypes.c_ulonglong()
        _call("cuMemAddressReserve", ctypes.byref(base), count(size), count(0), zero, zero)
        mapped: list[tuple[int, int, ctypes.c_ulonglong]] = []
        # What was mapped before an error is given back too.
        weakref.finalize(self, _free, base, size, mapped)
        access = _Access(properties.location, _READ_AND_WRITE)
        for first, length in pieces:
            handle = ctypes.c_ulonglong()
            start = ctypes.c_ulonglong(base.value + first)
            _call(
                "cuMemCreate", ctypes.byref(handle), count(length), ctypes.byref(properties), zero
            )
            mapped.append((base.value + first, length, handle))
            _call("cuMemMap", start, count(length), count(0), handle, zero)
            _call("cuMemSetAccess", start, count(length), ctypes.byref(access), count(1))
        # torch adopts the memory through this protocol and keeps the object, and with it the range,
        # alive.
        self.__cuda_array_interface__ = dict(
            shape=(shown[1],),
            typestr="|u1",
            data=(base.value + shown[0], False),
            version=3,
            strides=None,
        )


def _free(
    base: ctypes.c_ulonglong, size: int, mapped: list[tuple[int, int, ctypes.c_ulonglong]]
) -> None:
    """Give the memory back. A lost device refuses, and its process is about to end."""
    driver = _driver()
    count = ctypes.c_size_t
    # A kernel in flight may still use the memory; unmapping it would turn a right kernel into a
    # fault.
    driver.cuCtxSynchronize()
    for start, length, handle in mapped:
        driver.cuMemUnmap(ctypes.c_ulonglong(start), count(length))
        driver.cuMemRelease(handle)
    driver.cuMemAddressFree(base, count(size))


def _grain() -> tuple[int, _Properties]:
    """The size of a grain in bytes on the current device, and the properties of memory there."""
    # The driver's calls need the context that torch makes.
    torch.cuda.current_stream().synchronize()
    properties = _Properties(
        type=_PINNED, location=_Location(_ON_DEVICE, torch.cuda.current_device())
    )
    grain = ctypes.c_size_t()
    _call(
        "cuMemGetAllocationGranularity",
        ctypes.byref(grain),
        ctypes.byref(properties),
        ctypes.c_int(0),
    )
    return grain.value, properties


def between_gaps(num_bytes: int) -> Tensor:
    """Device memory, uint8 [at least `num_bytes`, whole grains], with a grain without memory before
    and behind it.

    Raises PoisonError if the driver refuses.
    """
    grain, properties = _grain()
    room = -(-num_bytes // grain) * grain
    return torch.as_tensor(
        _Range(room + 2 * grain, [(grain, room)], (grain, room), properties), device="cuda"
    )


class _Part:
    """Bytes of a tensor on a GPU, which `torch.as_tensor` reads as memory of their own."""

    def __init__(self, whole: Tensor, start: int, num_bytes: int) -> None:
        self.whole = whole
        self.__cuda_array_interface__ = dict(
            shape=(num_bytes,),
            typestr="|u1",
            data=(whole.data_ptr() + start, False),
            version=3,
            strides=None,
        )


def part_of(whole: Tensor, start: int, num_bytes: int) -> Tensor:
    """`whole[start : start + num_bytes]` of uint8 [room] on a GPU, with a storage of these bytes
    alone, which keeps `whole` alive.
    """
    return torch.as_tensor(_Part(whole, start, num_bytes), device="cuda")


def with_memory_at(num_bytes: int, used: Iterable[Piece]) -> Tensor:
    """Device addresses, uint8 [num_bytes], with memory in the grains of the `used` pieces alone.

    The first byte is one of them. Raises PoisonError if the driver refuses.
    """
    grain, properties = _grain()
    pieces = in_grains(used, grain)
    size = -(-num_bytes // grain) * grain
    return torch.as_tensor(_Range(size, pieces, (0, num_bytes), properties), device="cuda")


def in_grains(used: Iterable[Piece], grain: int) -> list[Piece]:
    """The grains that hold the `used` pieces, joined where they touch, in the order of
    addresses.
    """
    found: list[Piece] = []
    for first, length in sorted(piece for piece in used if piece[1]):
        start = first // grain * grain
        end = -(-(first + length) // grain) * grain
        if found and start <= sum(found[-1]):
            found[-1] = (found[-1][0], max(end, sum(found[-1])) - found[-1][0])
        else:
            found.append((start, end - start))
    return found


def pieces_of(tensor: Tensor) -> list[Piece]:
    """The bytes of each entry of dim 0 of `tensor` [N, ...] of any dtype, such as bfloat16 or
    uint8.

    Offsets are in bytes from the start of its storage, so a view of a part of the storage keeps its
    place.
    """
    size = tensor.element_size()
    # The distance from the first element of an entry to its last, and that element: gaps of strides
    # count, as a kernel may step over them.
    inner = 1 + sum(
        (count - 1) * stride
        for count, stride in zip(tensor.shape[1:], tensor.stride()[1:], strict=True)
    )
    starts = (tensor.storage_offset() + row * tensor.stride(0) for row in range(len(tensor)))
    return [(int(start) * size, int(inner) * size) for start in starts]
