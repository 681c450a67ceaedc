"""Numbers of 4 and 8 bits that share a scale by blocks of a row: NVFP4, and OCP's MXFP4 and MXFP8, bit by bit.

A block's elements are stored as codes; what a code stands for is looked up here, for kernels' outputs and references.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

SCALE_TILE = 128
"""Rows of a scale tensor come in whole tiles, as tensor cores load them; each expert's begin with a tile of its own."""


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """`block` elements share a scale. `element_max` is the largest element, and `exponent_max` its exponent."""

    block: int
    element: Literal["e2m1", "e4m3"]
    scale: Literal["e4m3", "e8m0"]
    element_max: float
    exponent_max: int

    @property
    def codes_per_byte(self) -> int:
        """Elements of 4 bits are stored two a byte, the first in the low half."""
        return 2 if self.element == "e2m1" else 1


FORMATS = {
    "nvfp4": BlockFormat(16, "e2m1", "e4m3", 6.0, 2),
    "mxfp4": BlockFormat(32, "e2m1", "e8m0", 6.0, 2),
    "mxfp8": BlockFormat(32, "e4m3", "e8m0", 448.0, 8),
}


def num_scale_rows(expert_rows: list[int]) -> int:
    """Rows of a scale tensor for experts with so many rows: each is rounded up to whole tiles."""
    return sum(-(-rows // SCALE_TILE) * SCALE_TILE for rows in expert_rows)


def decoded_values(values: Tensor, block_format: BlockFormat) -> Tensor:
    """Stored codes [T, C] uint8 as numbers [T, K] float32, not scaled."""
    if block_format.element == "e4m3":
        return _table("e4m3").to(values.device)[values.long()]
    codes = torch.stack((values & 0xF, values >> 4), dim=-1).flatten(1)
    return _table("e2m1").to(values.device)[codes.long()]


def decoded_scales(scales: Tensor, block_format: BlockFormat) -> Tensor:
    """Stored scales [S, G] uint8 as numbers, float32."""
    return _table(block_format.scale).to(scales.device)[scales.long()]


def magnitudes(kind: Literal["e2m1", "e4m3"]) -> Tensor:
    """What the codes of positive finite numbers stand for, rising with the code, float64."""
    table = _table(kind)[: 8 if kind == "e2m1" else 0x7F]
    return table.double()


def _table(kind: Literal["e2m1", "e4m3", "e8m0"]) -> Tensor:
    """Code -> number. e4m3 has no infinity, and NaN where all bits but the sign are set; e8m0 is a power of two."""
    if kind == "e2m1":
        positive = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
        return torch.cat((positive, -positive))
    codes = torch.arange(256)
    if kind == "e8m0":
        return torch.where(codes == 255, torch.nan, torch.ldexp(torch.ones(256), codes - 127))
    exponent, mantissa = (codes >> 3) & 0xF, codes & 7
    is_normal = exponent > 0
    size = torch.ldexp((mantissa + 8 * is_normal).float(), exponent.clamp(min=1) - 10)
    size = torch.where((codes & 0x7F) == 0x7F, torch.nan, size)
    return torch.where(codes >= 128, -size, size)
