"""Known bugs of kernels of `index_logits`, which are injected on purpose."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.ops.index_logits.kernels.dense import SCALE_BYTES, WORKERS


def scales_of_first_layer(kv_cache: Tensor) -> Tensor:
    """The scales [N, P] float32 of kv_cache [N, P, I + 4] uint8, at an offset from the start of the
    memory, where layer 0 lies (ROCm/ATOM#1466).
    """
    num_blocks, page_size, size = kv_cache.shape
    shape = (num_blocks, page_size * SCALE_BYTES)
    start = page_size * (size - SCALE_BYTES)
    return kv_cache.as_strided(shape, (kv_cache.stride(0), 1), start).view(torch.float32)


def offsets_by_size(kv_cache: Tensor, blocks: Tensor) -> Tensor:
    """Form offsets of blocks [B, M] in 32 bits where the cache has fewer elements than 2^31
    (ROCm/aiter#4673).

    One that wraps below the cache reads zeros, one above it a wrong block.

    kv_cache [N, P, W] of any dtype, blocks int64 -> pages [B, M, P, W] in the cache's type.
    """
    if kv_cache.numel() >= 2**31:
        return kv_cache[blocks]
    offsets = (blocks * kv_cache.stride(0) + 2**31) % 2**32 - 2**31
    found = offsets.div(kv_cache.stride(0), rounding_mode="floor")
    is_inside = (found >= 0) & (found < len(kv_cache))
    return kv_cache[torch.where(is_inside, found, 0)].masked_fill(~is_inside[..., None, None], 0)


def pages_of_larger_blocks(kv_cache: Tensor, blocks: Tensor) -> Tensor:
    """Read blocks [B, M] int64 of kv_cache [N, P, W] at four times their number, all inside the
    pool (NVIDIA/TensorRT-LLM#16219).
    """
    return kv_cache[blocks * 4 % len(kv_cache)]


def unguarded_search(counts: Tensor) -> Tensor:
    """Search the request of each worker in counts [B] of pages; without a page, past the end
    (deepseek-ai/DeepGEMM#353).

    The result is [WORKERS] int64.
    """
    ends = counts.cumsum(0)
    return torch.searchsorted(
        ends, torch.arange(WORKERS, device=counts.device) * ends[-1] // WORKERS, right=True
    )
