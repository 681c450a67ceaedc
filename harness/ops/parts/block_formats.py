"""Numbers of 4 and 8 bits that share a scale by blocks of a row:

NVFP4, and OCP's MXFP4 and MXFP8, bit by bit.

Elements are stored as codes. The tables of values here serve kernels' outputs and references.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

SCALE_TILE = 128
"""Rows of a tile of scales, as tensor cores load them. The rows of each expert start a new tile."""


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """`block` elements share a scale.

    `element_max` is the largest element, `exponent_max` its exponent.
    """

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
    """Rows of a scale tensor: the rows of each expert, rounded up to whole tiles."""
    return sum(-(-rows // SCALE_TILE) * SCALE_TILE for rows in expert_rows)


def decoded_values(values: Tensor, block_format: BlockFormat) -> Tensor:
    """Values [T, K] float32 of the codes values [T, C] uint8, not scaled.

    An e4m3 code is a byte; an e2m1 code is half a byte, and the low half comes first.
    """
    if block_format.element == "e4m3":
        return _table("e4m3").to(values.device)[values.long()]
    codes = torch.stack((values & 0xF, values >> 4), dim=-1).flatten(1)
    return _table("e2m1").to(values.device)[codes.long()]


def decoded_scales(scales: Tensor, block_format: BlockFormat) -> Tensor:
    """Values [S, G] float32 of the scale codes scales [S, G] uint8."""
    return _table(block_format.scale).to(scales.device)[scales.long()]


def magnitudes(kind: Literal["e2m1", "e4m3"]) -> Tensor:
    """Values float64 of the codes of positive finite numbers, in rising order."""
    return _table(kind)[: 8 if kind == "e2m1" else 0x7F].double()


def _table(kind: Literal["e2m1", "e4m3", "e8m0"]) -> Tensor:
    """Code -> value. e4m3 has no infinity, and is NaN where all bits but the sign are set; e8m0 is
    a power of two.
    """
    if kind == "e2m1":
        positive = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
        return torch.cat((positive, -positive))
    codes = torch.arange(256)
    if kind == "e8m0":
        return torch.where(codes == 255, torch.nan, torch.ldexp(torch.ones(256), codes - 127))
    exponent = (codes >> 3) & 0xF
    mantissa = codes & 7
    is_normal = exponent > 0
    # The bias is 7, and the mantissa is counted in eighths: 7 + 3.
    size = torch.ldexp((mantissa + 8 * is_normal).float(), exponent.clamp(min=1) - 10)
    size = torch.where((codes & 0x7F) == 0x7F, torch.nan, size)
    return torch.where(codes >= 128, -size, size)
