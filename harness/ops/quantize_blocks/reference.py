"""The reference of `quantize_blocks`."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from harness.ops.parts.block_formats import (
    FORMATS,
    SCALE_TILE,
    BlockFormat,
    magnitudes,
    num_scale_rows,
)


class Blocks(NamedTuple):
    """Elements [T, K] before scaling back (NaN in rows of no expert), scales [S, G], and the
    experts' rows [T] bool.
    """

    values: Tensor
    scales: Tensor
    live: Tensor


def expected(
    x: Tensor,
    expert_offsets: Tensor,
    *,
    block_format: str,
    chosen: tuple[Tensor, Tensor] | None = None,
) -> Blocks:
    """Quantize each live row by itself, by search among all numbers of the format.

    Scales of no block are code 0.

    A number next to the middle of two others may be rounded to either: a product with the
    reciprocal of a scale does not decide as a division does. There the result is the kernel's
    choice, if `chosen`, its values [T, K] and scales [S, G], is one of the two. Scales that are
    powers of two divide exactly and leave no choice.

    x [T, K] is bfloat16 or float32, expert_offsets [X + 1] int32, in rows -> values [T, K] and
    scales [S, G] float64, and [T] bool: whether a row is live.
    """
    form = FORMATS[block_format]
    num_tokens, width = x.shape
    bounds = expert_offsets.tolist()
    counts = [end - start for start, end in pairwise(bounds)]
    values = torch.full((num_tokens, width), torch.nan, dtype=torch.float64)
    unused = 2.0**-127 if form.scale == "e8m0" else 0.0
    scales = torch.full((num_scale_rows(counts), width // form.block), unused, dtype=torch.float64)
    first = 0
    follows = chosen if form.scale == "e4m3" else None
    for start, count in zip(bounds, counts, strict=False):
        for row in range(count):
            blocks = x[start + row].double().view(-1, form.block)
            scale = _block_scale(
                blocks.abs().amax(dim=1), form, follows and follows[1][first + row]
            )
            scales[first + row] = scale
            values[start + row] = _block_elements(
                blocks, scale, form, follows and follows[0][start + row]
            ).flatten()
        # Each expert starts a new tile of scale rows, as grouped GEMMs load them.
        first += -(-count // SCALE_TILE) * SCALE_TILE
    return Blocks(values, scales, torch.arange(num_tokens) < bounds[-1])


def _block_scale(amax: Tensor, form: BlockFormat, chosen: Tensor | None) -> Tensor:
    """The scale of blocks with these largest magnitudes [G]."""
    if form.scale == "e4m3":
        return _nearest(amax / form.element_max, magnitudes("e4m3"), chosen)
    exponent = torch.frexp(amax).exponent - 1 - form.exponent_max
    # The exponent of 0 has no meaning, and e8m0 has no zero: its least scale stands for it.
    exponent = torch.where(amax == 0, -127, exponent).clamp(-127, 127)
    return torch.ldexp(torch.ones_like(amax), exponent)


def _block_elements(
    blocks: Tensor, scale: Tensor, form: BlockFormat, chosen: Tensor | None
) -> Tensor:
    scaled = torch.where(scale[:, None] == 0, 0.0, blocks / scale[:, None])
    sizes = None if chosen is None else chosen.view(blocks.shape).abs()
    return scaled.sign() * _nearest(scaled.abs(), magnitudes(form.element), sizes)


TIE_MARGIN = 2.0**-22
"""Two roundings of float32: numbers so near the middle of two others, relative to it, are a tie."""


def _nearest(sizes: Tensor, table: Tensor, chosen: Tensor | None = None) -> Tensor:
    """The entry of a rising `table` nearest to each size, at a tie the one of even code; the last
    entry at most.

    At a tie up to rounding it is `chosen`, if that is the other entry.
    """
    above = torch.searchsorted(table, sizes).clamp(max=len(table) - 1)
    below = (above - 1).clamp(min=0)
    to_above = table[above] - sizes
    to_below = sizes - table[below]
    is_below = (to_below < to_above) | ((to_below == to_above) & (below % 2 == 0))
    if chosen is not None:
        is_tie = (to_above - to_below).abs() <= TIE_MARGIN * sizes
        is_below = torch.where(is_tie & (chosen == table[below]), True, is_below)
        is_below &= ~(is_tie & (chosen == table[above]))
    return torch.where(is_below, table[below], table[above])
