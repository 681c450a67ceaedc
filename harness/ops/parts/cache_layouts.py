"""The paged cache [N, P, D]: its types, the stride of its pages, and the memory beside them that is
not the layer's.

`block_major`: the pages of all layers of a block are one allocation [N, L, P, D], and a kernel gets
the view of one layer (vllm-project/vllm#45111). `manager_blocks` is the same, and a block of the
cache's manager is several pages in a row: the stride of dim 0 is a page's, not a manager block's
(vllm-project/vllm#51718). `padded_pages` have unused elements behind each page. `large` pools use
memory only for pages that are touched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from harness.core.call_words import PAGES_OF_MANAGER_BLOCK
from harness.core.errors import InputError, NoMemoryError
from harness.core.ops import PAGE_SIZE
from harness.core.shapes import CacheLayout
from harness.memory import pools

KV_DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_ds_mla": torch.uint8,
}
KV_SCALE = 0.0117
"""The per-tensor scale of fp8 caches: latents of unit variance use the range of e4m3 without
saturating.

It is no power of two, so an op that omits it or applies it twice in a rounding step cannot be right
by luck.
"""
LAYERS = 3
OWN_LAYER = 1
"""Layers that share an allocation, and the layer under test. It has neighbours on both sides."""
PADDING = 256
"""Elements behind each padded page: a multiple of 128 bytes in every cache type."""


def empty_cache(
    num_blocks: int,
    head_dim: int,
    dtype: torch.dtype,
    layout: CacheLayout = "contiguous",
    page_stride: int = 0,
    page_size: int = PAGE_SIZE,
) -> Tensor:
    """A cache [N, P, D] of zeros in a layout, or with pages `page_stride` elements apart (0: as the
    layout has them).

    A stride of 2**29 puts the ninth page past 2**32 elements, as in the pool of a large machine:
    offsets of 32 bits wrap there. Raises InputError for a stride smaller than a page, and
    NoMemoryError without enough address space.
    """
    page = page_size * head_dim
    if layout == "large":
        # Half of the pages begin past 2**31 elements. Whole pages lie in the gaps, as in a real
        # pool.
        page_stride = page_stride or page * -(-(2**31) // (num_blocks // 2 * page))
    if page_stride:
        return spread((num_blocks, page_size, head_dim), dtype, page_stride)
    if layout == "padded_pages":
        return pools.zeros(num_blocks, page + PADDING, dtype=dtype)[:, :page].view(
            -1, page_size, head_dim
        )
    if layout in ("block_major", "manager_blocks"):
        return pools.zeros(num_blocks, LAYERS, page_size, head_dim, dtype=dtype)[:, OWN_LAYER]
    return pools.zeros(num_blocks, page_size, head_dim, dtype=dtype)


def laid_out(pages: Tensor, layout: CacheLayout) -> Tensor:
    """A cache with the content of `pages` [N, P, D] in a layout.

    Of any dtype; pages [N, P, D] of float8_e4m3fn and bfloat16 are copied as bytes, so that
    sentinels keep their bits.
    """
    if layout == "contiguous":
        return pages
    cache = empty_cache(len(pages), pages.shape[2], pages.dtype, layout)
    cache.view(torch.uint8).copy_(pages.view(torch.uint8))
    return cache


def neighbors(cache: Tensor, layout: CacheLayout) -> dict[str, Tensor]:
    """The memory beside the pages of `cache` [N, P, D] of any dtype: the name of a row, with {} for
    the page -> a view [N, elements] in the cache's type, such as bfloat16.

    Large pools have none: their gaps are address space without memory.
    """
    page = cache.shape[1] * cache.shape[2]
    stride = cache.stride(0)
    if layout == "padded_pages":
        return {
            "padding after page {}": cache.as_strided(
                (len(cache), stride - page), (stride, 1), page
            )
        }
    if layout in ("block_major", "manager_blocks"):
        # A kernel that takes the pages for contiguous writes into these.
        others = [layer for layer in range(LAYERS) if layer != OWN_LAYER]
        shape = (len(cache), page)
        strides = (stride, 1)
        return {
            f"page {{}} of layer {layer}": cache.as_strided(shape, strides, layer * page)
            for layer in others
        }
    return {}


def allotted(
    num_pages: Sequence[int], num_spare_blocks: int, layout: CacheLayout, generator: torch.Generator
) -> list[Tensor]:
    """The pages [n] int32 of each request, and last the pages that belong to no request, in random
    order.

    A request that needs `num_pages` pages gets whole blocks of the manager. Block 0 belongs to no
    request.
    """
    size = pages_in_block(layout)
    num_blocks = [*(-(-count // size) for count in num_pages), num_spare_blocks]
    # Pages of a request in no order: a kernel that reads the cache without its table is wrong at
    # once.
    blocks = 1 + torch.randperm(sum(num_blocks), generator=generator)
    pages = (blocks[:, None] * size + torch.arange(size)).to(torch.int32).flatten()
    return list(torch.split(pages, [count * size for count in num_blocks]))


def pages_in_block(layout: CacheLayout) -> int:
    return PAGES_OF_MANAGER_BLOCK if layout == "manager_blocks" else 1


def spread(shape: tuple[int, ...], dtype: torch.dtype, stride: int) -> Tensor:
    """Zeros of `shape` with entries of dim 0 `stride` elements apart.

    Memory between them is not used.

    Raises InputError for a stride smaller than an entry, and NoMemoryError without enough address
    space.
    """
    count, *inner = shape
    entry = math.prod(inner)
    if stride < entry:
        raise InputError(
            f"a stride of {stride}: a page has {entry} elements (or a row); give at least as many,"
            " or 0"
        )
    size = ((count - 1) * stride + entry) * dtype.itemsize
    try:
        # Address space without memory: pages that nothing touches cost nothing.
        memory = pools.untouched(size)
    except (OSError, ValueError) as error:
        raise NoMemoryError(
            f"a pool of {size / 2**30:.1f} GiB finds no address space here: {error}"
        ) from None
    strides = (stride, *torch.empty(inner, device="meta").stride())
    return memory.view(dtype).as_strided(shape, strides)
