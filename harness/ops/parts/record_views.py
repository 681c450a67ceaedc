"""Stores and loads records of a paged cache, in each format, by views of its blocks.

A view of a part of the records is [N, P / t, t, ...]: token o of a block is at [o // t, o % t]. The
views follow the strides of the cache, because its blocks may lie between blocks of other layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.core.seams import seam
from harness.ops.parts.block_codes import E4M3_MAX, element_codes, scale_codes
from harness.ops.parts.block_formats import FORMATS, decoded_values

_LATENTS = 512
_INDEX_WIDTH = 128
_GROUP = 128
_NVFP4 = FORMATS["nvfp4"]
_SCALE_BYTES = {"indexer_planar": 4, "indexer_shuffled": 4, "nvfp4_linear": 8, "nvfp4_swizzled": 8}


def record_views(cache: Tensor, record_format: str) -> list[Tensor]:
    """The parts of the records of `cache` [N, P, bytes] uint8: views, as `_encoded` and `_decoded`
    order them.
    """
    if record_format == "indexer_interleaved":
        values, scales = cache.split_with_sizes([_INDEX_WIDTH, 4], dim=-1)
        return [values[:, :, None], inline_scales(cache, scales)[:, :, None]]
    # Scales lie inside the record, or the format has none: one view covers all bytes.
    if record_format not in _SCALE_BYTES:
        return [cache[:, :, None]]
    values, scales = planar_parts(cache, _SCALE_BYTES[record_format])
    if record_format == "indexer_shuffled":
        return [shuffled_values(values), scales[:, :, None]]
    if record_format == "nvfp4_linear":
        return [values[:, :, None], linear_scales(scales)]
    return [
        values[:, :, None],
        swizzled_scales(scales) if record_format == "nvfp4_swizzled" else scales[:, :, None],
    ]


@seam("records.planar-read-interleaved")
def planar_parts(cache: Tensor, scale_bytes: int) -> tuple[Tensor, Tensor]:
    """Values [N, P, v] and scales [N, P, s] of `cache` [N, P, v + s] uint8, whose blocks have the
    values of all tokens first, then all scales.

    Blocks of interleaved records have the same size, so that nothing asserts the difference
    (vllm-project/vllm#50576).
    """
    num_blocks, page_size, num_bytes = cache.shape
    border = page_size * (num_bytes - scale_bytes)
    # A view, as a block is dense within itself.
    flat = cache.flatten(1)
    return flat[:, :border].view(num_blocks, page_size, -1), flat[:, border:].view(
        num_blocks, page_size, -1
    )


@seam("records.shuffled-written-flat")
def shuffled_values(values: Tensor) -> Tensor:
    """`values` [N, P, 128] uint8 in tiles of 16 tokens x 16 bytes, as matrix cores load
    them: [N, P / 16, 16, 8, 16].

    A writer that stores them row by row puts them where the reader looks for other tokens
    (vllm-project/vllm#52109).
    """
    num_blocks, page_size, width = values.shape
    # In memory [tile, 8 groups, 16 tokens, 16 bytes]. The callers want a token's bytes side by
    # side.
    return values.view(num_blocks, page_size // 16, width // 16, 16, 16).transpose(2, 3)


@seam("records.inline-scales-by-shape")
def inline_scales(cache: Tensor, scales: Tensor) -> Tensor:
    """The `scales` [N, P, 4] that end the records of `cache` [N, P, 132], by its strides.

    Strides that are computed from the shape are wrong where the blocks of several layers lie side
    by side (vllm-project/vllm#49716).

    Both are uint8: a scale is the 4 bytes of a float32.
    """
    return scales


@seam("records.linear-scales-swizzled")
def linear_scales(scales: Tensor) -> Tensor:
    """The block scales [N, P, 8] token by token, for kernels that read them by stride: [N, P, 1, 8]
    (vllm-project/vllm#50084).

    They are uint8: e4m3 codes.
    """
    return scales[:, :, None]


def swizzled_scales(scales: Tensor) -> Tensor:
    """The block scales [N, P, 8], interleaved by 4 tokens for SM100's attention: [N, P / 4, 4, 4,
    2].

    They are uint8: e4m3 codes.
    """
    num_blocks, page_size, width = scales.shape
    return scales.view(num_blocks, page_size // 4, 4, width // 4, 4).permute(0, 1, 4, 2, 3)


def encoded(rows: Tensor, record_format: str, scale: float | None) -> list[Tensor]:
    """The parts of the records of rows [n, W] float32, as bytes [n, part]."""
    if record_format == "bf16":
        return [_bytes(rows.bfloat16())]
    # The scale of the whole cache. Formats with scales of their own apply theirs on top.
    if scale is not None:
        rows = rows / scale
    if record_format == "fp8_e4m3":
        return [_e4m3(rows)]
    if record_format.startswith("nvfp4"):
        blocks = rows.view(len(rows), -1, _NVFP4.block)
        codes = scale_codes(blocks.abs().amax(dim=-1), _NVFP4)
        return [element_codes(blocks, codes, _NVFP4), codes]
    latents = _LATENTS if record_format == "fp8_ds_mla" else _INDEX_WIDTH
    groups = rows[:, :latents].view(len(rows), -1, _GROUP)
    # A group of zeros would have scale 0, and 0 / 0 is no code.
    scales = groups.abs().amax(dim=-1).clamp(min=1e-4) / E4M3_MAX
    parts = [_e4m3((groups / scales[..., None]).flatten(1)), _bytes(scales)]
    return (
        parts
        if latents == _INDEX_WIDTH
        else [torch.cat((*parts, _bytes(rows[:, latents:].bfloat16())), dim=1)]
    )


def decoded(parts: list[Tensor], record_format: str, scale: float | None) -> Tensor:
    """Rows [n, W] float32 of the `parts` of their records: codes [n, bytes] uint8, then scales [n,
    s] uint8 if the format has them.
    """
    values = parts[0]
    if record_format == "bf16":
        return values.view(torch.bfloat16).float()
    if record_format == "fp8_ds_mla":
        return ds_mla_rows(values)
    if record_format.startswith("nvfp4"):
        factors = parts[1].view(torch.float8_e4m3fn).float().repeat_interleave(_NVFP4.block, dim=1)
        rows = decoded_values(values, _NVFP4) * factors
    else:
        rows = values.view(torch.float8_e4m3fn).float()
        # One float32 for all 128 values of an index key.
        if len(parts) > 1:
            rows = rows * parts[1].contiguous().view(torch.float32)
    return rows if scale is None else rows * scale


def ds_mla_rows(records: Tensor) -> Tensor:
    """Latents and rope [..., 576] float32 of records [..., 656] uint8 of `fp8_ds_mla`."""
    codes, scales, rope = (
        part.contiguous() for part in records.split_with_sizes([_LATENTS, 16, 128], dim=-1)
    )
    scale = scales.view(torch.float32).repeat_interleave(_GROUP, dim=-1)
    return torch.cat(
        (codes.view(torch.float8_e4m3fn).float() * scale, rope.view(torch.bfloat16).float()), dim=-1
    )


def _e4m3(values: Tensor) -> Tensor:
    # A value past 448 would become NaN: e4m3fn has no infinity to saturate to.
    return values.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)


def _bytes(values: Tensor) -> Tensor:
    return values.contiguous().view(torch.uint8)
