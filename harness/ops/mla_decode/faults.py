"""Known bugs of kernels of `mla_decode`, which are injected on purpose."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.core.call_words import PAGES_OF_MANAGER_BLOCK


def offsets_in_32_bits(blocks: Tensor, page_stride: int) -> Tensor:
    """Multiply blocks [A] int32 in 32 bits and widen afterwards: pages past 2**32 elements wrap
    (flashinfer-ai/flashinfer#3136).
    """
    return (blocks.to(torch.int64) * page_stride) & 0xFFFFFFFF


def page_stride_for_manager_blocks(kv_cache: Tensor) -> Tensor:
    """Read kv_cache [N, P, D] as if blocks of several pages began stride(0) apart, their pages one
    behind the other (vllm-project/vllm#51718).

    The result has the shape and dtype of the cache, bfloat16 or float32 or float8_e4m3fn.
    """
    num_pages = len(kv_cache)
    page = kv_cache[0].numel()
    sizes = (-(-num_pages // PAGES_OF_MANAGER_BLOCK), PAGES_OF_MANAGER_BLOCK, *kv_cache.shape[1:])
    blocks = kv_cache.as_strided(sizes, (kv_cache.stride(0), page, *kv_cache.stride()[1:]))
    return blocks.flatten(0, 1)[:num_pages]


def divide_without_guard(accumulated: Tensor, total: Tensor) -> Tensor:
    """accumulated [..., R] / total [...].

    Both are 0 where no key was seen: NaN (vllm-project/vllm#57017).

    Both are float32.
    """
    return accumulated / total[..., None]


def lse_over_the_first_tile(lse: Tensor) -> Tensor:
    """lse [B, S * H] float32 with the last whole tile of 8 rows over the first: its pointer does
    not advance (ikawrakow/ik_llama.cpp#1521).
    """
    found = lse.clone()
    for start in range(0, lse.shape[1], 8):
        tile = lse[:, start : start + 8]
        found[:, : tile.shape[1]] = tile
    return found


def column_of_the_tile(page: Tensor, page_size: int) -> Tensor:
    """The column of the first page of each tile of 64 slots, for page [A] int64
    (flashinfer-ai/flashinfer#3022).
    """
    pages = max(64 // page_size, 1)
    return page // pages * pages
