"""Pools of gigabytes. A call touches some of their pages, so they are made, copied and compared by
the pages of the system that hold something.

A real pool is as large. To draw one, copy it for the judge and compare it afterwards would read and
write all of it, where a test needs the addresses.
"""

from __future__ import annotations

import math
import mmap
from array import array
from collections.abc import Sequence

import torch
from torch import Tensor
from torch_poison.storages import whole_storage

LARGE_BYTES = 64 << 20
"""A smaller pool is read as a whole."""
MOST_BYTES = 16 << 30
"""Of more address space, the system takes too long to say what is used."""
MOST_GAPS = 64
"""A tensor whose memory is more than so many times its elements is mostly gaps."""
PAGE = mmap.PAGESIZE
CHUNK = 1 << 16

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""Linux reserves no memory before it is touched. Python names the flag since 3.13."""

Range = tuple[int, int]
"""The first byte of a part of a storage, and the byte behind it."""


def is_large(tensor: Tensor) -> bool:
    """Whether a tensor [...] of any dtype, such as bfloat16, lies in a large pool on the CPU."""
    return not tensor.is_cuda and LARGE_BYTES < tensor.untyped_storage().nbytes() <= MOST_BYTES


def untouched(num_bytes: int) -> Tensor:
    """Zeros, uint8 [num_bytes], on the CPU: addresses that get memory when they are written."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    return torch.frombuffer(mmap.mmap(-1, max(num_bytes, 1), flags=flags), dtype=torch.uint8)


def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
    """As `torch.zeros` on the CPU. A large one has no memory before it is written."""
    size = math.prod(shape) * dtype.itemsize
    if size <= LARGE_BYTES:
        return torch.zeros(*shape, dtype=dtype)
    return untouched(size)[:size].view(dtype).view(shape)


def used(tensor: Tensor) -> list[Range]:
    """The parts of the storage of a large tensor [...] that may hold something.

    The dtype is any, such as bfloat16; parts count bytes. The system says which of its pages have
    memory. What was only read may be among them.
    """
    size = tensor.untyped_storage().nbytes()
    begin = tensor.untyped_storage().data_ptr()
    first = begin // PAGE
    count = (begin + size - 1) // PAGE - first + 1
    # The system keeps a word for each page of a process. To read the words touches no page of the
    # pool.
    entries = array("Q")
    try:
        with open("/proc/self/pagemap", "rb") as file:
            file.seek(first * 8)
            entries.frombytes(file.read(count * 8))
    except OSError:
        # A system that keeps or shows no such file says nothing, so all of the pool counts as used.
        return [(0, size)]
    found: list[Range] = []
    words = torch.frombuffer(entries, dtype=torch.int64)
    # The two highest bits: as signed numbers, present ones are negative.
    held = ((words < 0) | ((words >> 62) & 1).bool()).nonzero().flatten().tolist()
    for page in held:
        start = max((first + page) * PAGE - begin, 0)
        end = min((first + page + 1) * PAGE - begin, size)
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


def used_on_gpu(tensor: Tensor) -> list[Range]:
    """As `used`, for a tensor [...] of any dtype (bfloat16, uint8) in a pool on a GPU.

    Its system says nothing of pages. The parts are the chunks that are not zero.
    """
    storage = whole_storage(tensor, torch.uint8)
    whole = len(storage) // CHUNK * CHUNK
    chunks = storage[:whole].view(torch.int64).view(-1, CHUNK // 8)
    held = chunks.ne(0).any(1).nonzero().flatten().tolist()
    found = [(chunk * CHUNK, (chunk + 1) * CHUNK) for chunk in held]
    # What is behind the last whole chunk is short, and counts as used.
    return merged([*found, (whole, len(storage))] if whole < len(storage) else found)


def copied(tensor: Tensor) -> Tensor:
    """As `torch.clone` of a tensor [...] of any dtype, such as bfloat16.

    A copy of a large pool has its strides, and memory where the pool has some.
    A pool that is mostly gaps, which hold nothing, is copied without them.
    """
    if not is_large(tensor) or tensor.untyped_storage().nbytes() > MOST_GAPS * tensor.nbytes:
        return tensor.clone()
    memory = untouched(tensor.untyped_storage().nbytes())
    source = whole_storage(tensor, torch.uint8)
    for start, end in used(tensor):
        memory[start:end] = source[start:end]
    size = tensor.untyped_storage().nbytes()
    # A storage may end within an element, which no view may.
    whole = memory[: size // tensor.element_size() * tensor.element_size()].view(tensor.dtype)
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def are_equal(first: Tensor, second: Tensor) -> bool:
    """Whether the storages of two large tensors, first [...] and second [...], have the same bytes.

    Both have one shape, one dtype (any, such as bfloat16) and one stride.
    """
    if first.stride() != second.stride() or first.storage_offset() != second.storage_offset():
        return False
    one = whole_storage(first, torch.uint8)
    other = whole_storage(second, torch.uint8)
    if len(one) != len(other):
        return False
    # What neither has touched is zeros in both.
    parts = merged([*used(first), *used(second)])
    return all(torch.equal(one[start:end], other[start:end]) for start, end in parts)


def merged(parts: Sequence[Range]) -> list[Range]:
    """The union of parts, in order."""
    found: list[Range] = []
    for start, end in sorted(parts):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found
