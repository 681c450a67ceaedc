"""Stores and loads records of a paged cache, in each format, by views of its blocks.

A view of a part of the records is [N, P / t, t, ...]: token o of a block is at [o // t, o % t]. The
views follow the strides of the cache, because its blocks may lie between blocks of other layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.core.seams import seam
from harness.kernels.checks import check_range, check_rising
from harness.kernels.ops.block_formats import FORMATS, decoded_values
from harness.kernels.ops.record_formats import RECORDS
from harness.kernels.torch.quantize import E4M3_MAX, element_codes, scale_codes
from harness.kernels.torch.write import stored_slots
from harness.memory.bounds import check_indices

_LATENTS, _INDEX_WIDTH, _GROUP = 512, 128, 128
_NVFP4 = FORMATS["nvfp4"]
_SCALE_BYTES = {"indexer_planar": 4, "indexer_shuffled": 4, "nvfp4_linear": 8, "nvfp4_swizzled": 8}


def write_records(
    x: Tensor,
    cache: Tensor,
    slot_mapping: Tensor,
    *,
    record_format: str,
    scale: float | None = None,
) -> None:
    """Store row t of x [T, W] in slot slot_mapping[t] of the cache [N, P, bytes] uint8; negative
    slots are skipped.

    `scale` divides the values of formats with a scale of the whole cache. Raises IllegalAddress for
    a slot past the cache.
    """
    if record_format not in RECORDS:
        raise ValueError(f"record_format={record_format!r} is unknown; known: {', '.join(RECORDS)}")
    check_range(
        "width of x", x.shape[1], RECORDS[record_format].width, RECORDS[record_format].width
    )
    check_range("tokens of slot_mapping", len(slot_mapping), 0, len(x))
    page_size = cache.shape[1]
    kept, slots = stored_slots(slot_mapping, cache.shape[0] * page_size)
    block, offset = slots // page_size, slots % page_size
    for part, view in zip(
        _encoded(x[kept].float(), record_format, scale), _views(cache, record_format), strict=True
    ):
        tile = view.shape[2]
        view[block, offset // tile, offset % tile] = part.view(len(kept), *view.shape[3:])


def read_records(
    cache: Tensor,
    block_table: Tensor,
    cu_seq_lens: Tensor,
    *,
    record_format: str,
    scale: float | None = None,
) -> Tensor:
    """The rows [T, W] float32 of all requests, one after another.

    cache: [N, P, bytes] uint8, block_table: [B, M] int32, cu_seq_lens: [B + 1] int32. Reads the
    number of tokens on the host. Raises IllegalAddress for a page of a live token past the cache.
    """
    page_size = cache.shape[1]
    check_range("requests of block_table", len(block_table), len(cu_seq_lens) - 1)
    check_rising("cu_seq_lens", cu_seq_lens.tolist())
    lengths = cu_seq_lens.diff().long()
    request = torch.repeat_interleave(torch.arange(len(lengths), device=cache.device), lengths)
    position = torch.arange(len(request), device=cache.device) - cu_seq_lens[request]
    column = check_indices(position // page_size, block_table.shape[1], "block_table column")
    block = check_indices(block_table[request, column], cache.shape[0], "block_table")
    offset = position % page_size
    parts = []
    for view in _views(cache, record_format):
        tile = view.shape[2]
        parts.append(view[block, offset // tile, offset % tile].flatten(1))
    rows = _decoded(parts, record_format, scale)
    out = torch.empty(rows.shape, dtype=torch.float32, device=cache.device)
    return out.copy_(rows)


def _views(cache: Tensor, record_format: str) -> list[Tensor]:
    """The parts of the records: views of the cache as `_encoded` and `_decoded` order them."""
    if record_format == "indexer_interleaved":
        values, scales = cache.split_with_sizes([_INDEX_WIDTH, 4], dim=-1)
        return [values[:, :, None], inline_scales(cache, scales)[:, :, None]]
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
    """Values [N, P, v] and scales [N, P, s] of blocks that have the values of all tokens first,
    then all scales.

    Blocks of interleaved records have the same size, so that nothing asserts the difference (PR
    50576).
    """
    num_blocks, page_size, num_bytes = cache.shape
    border = page_size * (num_bytes - scale_bytes)
    flat = cache.flatten(1)
    return flat[:, :border].view(num_blocks, page_size, -1), flat[:, border:].view(
        num_blocks, page_size, -1
    )


@seam("records.shuffled-written-flat")
def shuffled_values(values: Tensor) -> Tensor:
    """Values [N, P, 128] in tiles of 16 tokens x 16 bytes, as matrix cores load them: [N, P / 16,
    16, 8, 16].

    A writer that stores them row by row puts them where the reader looks for other tokens (PR
    52109).
    """
    num_blocks, page_size, width = values.shape
    return values.view(num_blocks, page_size // 16, width // 16, 16, 16).transpose(2, 3)


@seam("records.inline-scales-by-shape")
def inline_scales(cache: Tensor, scales: Tensor) -> Tensor:
    """The `scales` [N, P, 4] that end the records of `cache` [N, P, 132], by its strides.

    Strides that are computed from the shape are wrong where the blocks of several layers lie side
    by side (PR 49716).
    """
    return scales


@seam("records.linear-scales-swizzled")
def linear_scales(scales: Tensor) -> Tensor:
    """The block scales [N, P, 8] token by token, for kernels that read them by stride: [N, P, 1, 8]
    (PR 50084).
    """
    return scales[:, :, None]


def swizzled_scales(scales: Tensor) -> Tensor:
    """The block scales [N, P, 8], interleaved by 4 tokens for SM100's attention: [N, P / 4, 4, 4,
    2].
    """
    num_blocks, page_size, width = scales.shape
    return scales.view(num_blocks, page_size // 4, 4, width // 4, 4).permute(0, 1, 4, 2, 3)


def _encoded(rows: Tensor, record_format: str, scale: float | None) -> list[Tensor]:
    """The parts of the records of rows [n, W] float32, as bytes [n, part]."""
    if record_format == "bf16":
        return [_bytes(rows.bfloat16())]
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
    scales = groups.abs().amax(dim=-1).clamp(min=1e-4) / E4M3_MAX
    parts = [_e4m3((groups / scales[..., None]).flatten(1)), _bytes(scales)]
    return (
        parts
        if latents == _INDEX_WIDTH
        else [torch.cat((*parts, _bytes(rows[:, latents:].bfloat16())), dim=1)]
    )


def _decoded(parts: list[Tensor], record_format: str, scale: float | None) -> Tensor:
    """Rows [n, W] float32 of the parts of their records."""
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
    return values.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)


def _bytes(values: Tensor) -> Tensor:
    return values.contiguous().view(torch.uint8)
