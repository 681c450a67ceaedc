"""Faults of cache records: a writer and a reader that place the bytes of a record differently."""

from __future__ import annotations

from torch import Tensor

from harness.ops.parts.record_views import swizzled_scales


def interleaved_parts(cache: Tensor, scale_bytes: int) -> tuple[Tensor, Tensor]:
    """Take the blocks of `cache` [N, P, bytes] uint8 for interleaved records: a scale is then four
    values of a token (vllm-project/vllm#50576).
    """
    values, scales = cache.split_with_sizes([cache.shape[2] - scale_bytes, scale_bytes], dim=-1)
    return values, scales


def flat_values(values: Tensor) -> Tensor:
    """Store `values` [N, P, 128] uint8 row by row, where the reader expects tiles
    (vllm-project/vllm#52109).
    """
    return values[:, :, None]


def scales_by_shape(cache: Tensor, scales: Tensor) -> Tensor:
    """Compute the strides of the scales [N, P, 4] uint8 from the shape of the cache [N, P, 132]
    uint8, which says nothing of other layers' blocks (vllm-project/vllm#49716).
    """
    _, page_size, num_bytes = cache.shape
    return scales.as_strided(scales.shape, (page_size * num_bytes, num_bytes, 1))


def scales_for_another_gpu(scales: Tensor) -> Tensor:
    """Swizzle the `scales` [N, P, 8] uint8 for SM100's attention, whichever kernel reads them
    (vllm-project/vllm#50084).
    """
    return swizzled_scales(scales)
