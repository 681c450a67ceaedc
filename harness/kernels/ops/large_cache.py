"""Paged caches of any size in address space. They use memory only for pages that are touched."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

from harness.core.errors import InputError
from harness.core.ops import PAGE_SIZE

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""Linux reserves no memory before it is touched. Python names the flag since 3.13."""


def empty_cache(num_blocks: int, head_dim: int, dtype: torch.dtype, page_stride: int = 0) -> Tensor:
    """A cache [N, P, D] of zeros with pages `page_stride` elements apart (0: contiguous).

    A stride of 2**29 puts the ninth page past 2**32 elements, as in the pool of a large machine: offsets of 32 bits
    wrap there. Raises InputError for a stride smaller than a page, or if there is not enough address space.
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
