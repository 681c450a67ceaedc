"""What `quantize_blocks` should return, in float64 and by search among all numbers that a format has."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from harness.kernels.ops.block_formats import FORMATS, SCALE_TILE, BlockFormat, magnitudes, num_scale_rows


class Blocks(NamedTuple):
    """Elements [T, K] before scaling back (NaN in rows of no expert), scales [S, G], and which rows are an expert's."""

    values: Tensor
    scales: Tensor
    live: Tensor


def quantize_blocks(x: Tensor, expert_offsets: Tensor, *, block_format: str) -> Blocks:
    """Each live row by itself: the scale of a block comes from its own elements alone, all other scales are code 0."""
    form = FORMATS[block_format]
    num_tokens, width = x.shape
    bounds = expert_offsets.tolist()
    counts = [end - start for start, end in pairwise(bounds)]
    values = torch.full((num_tokens, width), torch.nan, dtype=torch.float64)
    unused = 2.0**-127 if form.scale == "e8m0" else 0.0
    scales = torch.full((num_scale_rows(counts), width // form.block), unused, dtype=torch.float64)
    first = 0
    for start, count in zip(bounds, counts, strict=False):
        for row in range(count):
            blocks = x[start + row].double().view(-1, form.block)
            scale = _scale(blocks.abs().amax(dim=1), form)
            scales[first + row] = scale
            values[start + row] = _elements(blocks, scale, form).flatten()
        first += -(-count // SCALE_TILE) * SCALE_TILE
    return Blocks(values, scales, torch.arange(num_tokens) < bounds[-1])


def _scale(amax: Tensor, form: BlockFormat) -> Tensor:
    """The scale of blocks with these largest magnitudes [G]."""
    if form.scale == "e4m3":
        return _nearest(amax / form.element_max, magnitudes("e4m3"))
    exponent = torch.frexp(amax).exponent - 1 - form.exponent_max
    exponent = torch.where(amax == 0, -127, exponent).clamp(-127, 127)
    return torch.ldexp(torch.ones_like(amax), exponent)


def _elements(blocks: Tensor, scale: Tensor, form: BlockFormat) -> Tensor:
    scaled = torch.where(scale[:, None] == 0, 0.0, blocks / scale[:, None])
    return scaled.sign() * _nearest(scaled.abs(), magnitudes(form.element))


def _nearest(sizes: Tensor, table: Tensor) -> Tensor:
    """The entry of a rising `table` next to each size, of two as near the one of even code; the last one at most."""
    above = torch.searchsorted(table, sizes).clamp(max=len(table) - 1)
    below = (above - 1).clamp(min=0)
    to_above, to_below = table[above] - sizes, sizes - table[below]
    is_below = (to_below < to_above) | ((to_below == to_above) & (below % 2 == 0))
    return torch.where(is_below, table[below], table[above])
