"""Blocks with scales of their own in torch."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from harness.core.seams import seam
from harness.kernels.checks import check_range, check_rising
from harness.memory.bounds import check_indices
from harness.ops.parts.block_codes import element_codes, scale_codes
from harness.ops.parts.block_formats import FORMATS, SCALE_TILE, num_scale_rows


def quantize_blocks(
    x: Tensor, expert_offsets: Tensor, *, block_format: str
) -> tuple[Tensor, Tensor]:
    """Codes and block scales of the rows of each expert.

    x: [T, K]; expert e has the rows expert_offsets[e] to expert_offsets[e + 1] ([X + 1] int32) ->
    values [T, C] uint8 codes, C = K / 2 for elements of 4 bits and K for 8 bits; scales [S, G]
    uint8 codes of G blocks a row, padded for each expert to tiles of 128 rows with code 0. Values
    of rows past expert_offsets[-1], which have no expert, are not written. See
    :data:`harness.ops.parts.block_formats.FORMATS`.
    """
    form = FORMATS[block_format]
    # Offsets are read on the host: the sizes of the scales depend on them.
    offsets = check_indices(expert_offsets, x.shape[0] + 1, "expert_offsets").tolist()
    check_rising("expert_offsets", offsets)
    check_range(f"width of x in excess of blocks of {form.block}", x.shape[1] % form.block, 0, 0)
    counts = [end - start for start, end in pairwise(offsets)]
    blocks = x.float().view(len(x), -1, form.block)
    codes = scale_codes(block_amax(blocks.abs()), form)
    rows = scale_rows(x.shape[0], offsets).to(x.device)
    has_place = rows >= 0
    scales = empty_scales(num_scale_rows(counts), codes.shape[1], x.device)
    # Rows without an expert have no place; writing them anywhere would overwrite another expert's
    # scales.
    scales[check_indices(rows[has_place], len(scales), "scale rows")] = codes[has_place]
    values = torch.empty(
        (len(x), x.shape[1] // form.codes_per_byte), dtype=torch.uint8, device=x.device
    )
    # Rows behind the last expert may be unwritten, and no reader needs their codes.
    live = slice(0, offsets[-1])
    values[live] = element_codes(blocks[live], codes[live], form)
    return values, scales


@seam("scale.row-groups-mix-rows")
def block_amax(magnitudes: Tensor) -> Tensor:
    """The largest of the `magnitudes` [T, G, elements] float32 of each block: [T, G] float32.

    A NaN propagates, within its block.

    A reduction that spans the rows of a warp gives them one scale (flashinfer-ai/flashinfer#3057).
    """
    return magnitudes.amax(dim=-1)


@seam("scale.orphan-rows-to-expert-zero")
def scale_rows(num_rows: int, offsets: list[int]) -> Tensor:
    """The scale row of each row, [T] int64.

    Each expert starts a new tile. Rows of no expert have -1.

    A row without an expert must not count as a row of expert 0 (flashinfer-ai/flashinfer#3574).
    """
    rows = torch.full((num_rows,), -1)
    first = 0
    for start, end in pairwise(offsets):
        rows[start:end] = torch.arange(first, first + end - start)
        first += num_scale_rows([end - start])
    return rows


@seam("scale.unwritten-fp4-padding")
def empty_scales(num_rows: int, num_blocks: int, device: torch.device) -> Tensor:
    """A scale tensor of code 0:

    GEMMs load the padding of tiles too, and some apply it to real rows (vllm-project/vllm#38148).
    """
    assert num_rows % SCALE_TILE == 0
    return torch.empty((num_rows, num_blocks), dtype=torch.uint8, device=device).zero_()
