"""Paged caches of any size in address space: memory is only spent on pages that are touched."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

from harness.core.errors import InputError
from harness.core.ops import PAGE_SIZE

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""Linux's flag for memory that is not counted before it is touched; named in `mmap` since Python 3.13."""


def empty_cache(num_blocks: int, head_dim: int, dtype: torch.dtype, page_stride: int = 0) -> Tensor:
    """A cache [N, P, D] of zeros whose pages begin `page_stride` elements apart; 0: one lies behind the other.

    A stride of 2**29 puts the ninth page past 2**32 elements, where offsets formed in 32 bits wrap, as they do in the
    pool of a large machine. Raises InputError for a stride smaller than a page, or address space that is not there.
    """
    page = PAGE_SIZE * head_dim
    if page_stride == 0:
        return torch.zeros(num_blocks, PAGE_SIZE, head_dim, dtype=dtype)
    if page_stride < page:
        raise InputError(f"page_stride={page_stride}: a page has {page} elements; give at least as many, or 0")
    size = ((num_blocks - 1) * page_stride + page) * dtype.itemsize
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    except (OSError, ValueError) as error:
        raise InputError(f"page_stride={page_stride}: no {size} bytes of address space here ({error})") from None
    flat = torch.frombuffer(memory, dtype=torch.uint8).view(dtype)
    return flat.as_strided((num_blocks, PAGE_SIZE, head_dim), (page_stride, head_dim, 1))
