"""Quantization of activations: to FP8 e4m3, where one bad row can spoil the scale of all others,
and to formats with a scale for each block of a row, for rows sorted by expert.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.ops.parts.block_formats import BlockFormat

E4M3_MAX = 448.0


_E2M1_BORDERS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Half-way between neighbours.

A number on an odd border goes up, on an even border down, to the even code.
"""


def scale_codes(amax: Tensor, form: BlockFormat) -> Tensor:
    """The scale codes uint8 of blocks with the largest magnitudes `amax` [T, G].

    e4m3: the nearest to amax / element_max. e8m0: the power of two that brings amax to the top
    binade of the elements.
    """
    if form.scale == "e4m3":
        # Past 448 torch's conversion gives NaN, as e4m3fn has no infinity.
        scale = (amax / form.element_max).clamp(max=448.0)
        return scale.to(torch.float8_e4m3fn).view(torch.uint8)
    # frexp counts from 0.5, one above the exponent of the binade, and e8m0 has a bias of 127.
    exponent = torch.frexp(amax).exponent + (126 - form.exponent_max)
    code = torch.where(amax == 0, 0, exponent).clamp(0, 254)
    # 255 is the NaN of e8m0: a block that is not finite must not get a scale that is.
    return torch.where(amax.isfinite(), code, 255).to(torch.uint8)


def element_codes(blocks: Tensor, codes: Tensor, form: BlockFormat) -> Tensor:
    """blocks [T, G, elements] float32 divided by the scales of `codes` [T, G], as bytes [T, C]
    uint8.
    """
    if form.scale == "e4m3":
        scale = codes.view(torch.float8_e4m3fn).float()
    else:
        scale = torch.ldexp(torch.ones_like(codes, dtype=torch.float32), codes.int() - 127)
    scaled = (
        # A block of zeros has scale 0, and so has one that is too small for the least scale.
        torch.where(scale == 0, 0.0, (blocks / scale[..., None]).movedim(-1, 0))
        .movedim(0, -1)
        .flatten(1)
    )
    if form.element == "e4m3":
        return (
            scaled.clamp(-form.element_max, form.element_max)
            .to(torch.float8_e4m3fn)
            .view(torch.uint8)
        )
    size = scaled.abs()
    code = torch.zeros(scaled.shape, dtype=torch.uint8, device=scaled.device)
    for place, border in enumerate(_E2M1_BORDERS):
        code += (size >= border) if place % 2 else (size > border)
    code |= (scaled.signbit() & (code > 0)).to(torch.uint8) << 3
    return code[:, 0::2] | code[:, 1::2] << 4
