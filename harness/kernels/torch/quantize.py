"""Quantization of activations: to FP8 e4m3, where one bad row can spoil the scale of all others,
and to formats with a scale for each block of a row, for rows sorted by expert.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from harness.core.seams import seam
from harness.kernels.checks import check_range, check_rising
from harness.kernels.ops.block_formats import FORMATS, SCALE_TILE, BlockFormat, num_scale_rows
from harness.memory.bounds import check_indices

E4M3_MAX = 448.0


def quantize_fp8(x: Tensor, *, num_live: int | Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Per-tensor quantization. The maximum propagates NaN, as in torch and Triton (kernel `torch`).

    x: [T, K], num_live: the number of live rows, an int or an int tensor of one element (None: T)
    -> x8 [T, K] float8_e4m3fn, scale [1] float32, with x ~ x8 * scale. Every row is quantized. The
    maximum covers live rows only. Without a live row, or with zeros only, the scale is 1.
    """
    return _quantize(x, live_magnitudes(x, num_live).amax().reshape(1))


def quantize_fp8_fmax(x: Tensor, *, num_live: int | Tensor | None = None) -> tuple[Tensor, Tensor]:
    """As `quantize_fp8`, x [T, K], with a maximum that drops NaN, as CUDA's fmaxf does (kernel
    `torch-fmax`).
    """
    magnitudes = live_magnitudes(x, num_live)
    return _quantize(x, magnitudes.masked_fill(magnitudes.isnan(), 0.0).amax().reshape(1))


def quantize_fp8_per_token(
    x: Tensor, *, num_live: int | Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """One scale a row, scale [T, 1]: no row spoils another, so `num_live` is not used (kernel
    `per-token`).
    """
    _check_count(x, num_live)
    return _quantize(x, x.float().abs().amax(dim=1, keepdim=True))


def live_magnitudes(x: Tensor, num_live: int | Tensor | None) -> Tensor:
    """abs(x) [T, K] float32, 0 in rows at or past `num_live`."""
    magnitudes = x.float().abs()
    _check_count(x, num_live)
    if num_live is None:
        return magnitudes
    live = torch.arange(x.shape[0], device=x.device) < num_live
    return magnitudes.masked_fill(~live[:, None], 0.0)


def _check_count(x: Tensor, num_live: int | Tensor | None) -> None:
    if isinstance(num_live, int):
        check_range("num_live", num_live, 0, len(x))


def _quantize(x: Tensor, amax: Tensor) -> tuple[Tensor, Tensor]:
    x8 = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty(amax.shape, dtype=torch.float32, device=x.device)
    scale.copy_(torch.where(amax == 0, 1.0, amax / E4M3_MAX))
    x8.copy_((x.float() / scale).clamp(-E4M3_MAX, E4M3_MAX))
    return x8, scale


_E2M1_BORDERS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Half-way between neighbours.

A number on an odd border goes up, on an even border down, to the even code.
"""


def quantize_blocks(
    x: Tensor, expert_offsets: Tensor, *, block_format: str
) -> tuple[Tensor, Tensor]:
    """Codes and block scales of the rows of each expert.

    x: [T, K]; expert e has the rows expert_offsets[e] to expert_offsets[e + 1] ([X + 1] int32) ->
    values [T, C] uint8 codes, C = K / 2 for elements of 4 bits and K for 8 bits; scales [S, G]
    uint8 codes of G blocks a row, padded for each expert to tiles of 128 rows with code 0. Values
    of rows past expert_offsets[-1], which have no expert, are not written. See
    :data:`harness.kernels.ops.block_formats.FORMATS`.
    """
    form = FORMATS[block_format]
    offsets = check_indices(expert_offsets, x.shape[0] + 1, "expert_offsets").tolist()
    check_rising("expert_offsets", offsets)
    check_range(f"width of x in excess of blocks of {form.block}", x.shape[1] % form.block, 0, 0)
    counts = [end - start for start, end in pairwise(offsets)]
    blocks = x.float().view(len(x), -1, form.block)
    codes = scale_codes(block_amax(blocks.abs()), form)
    rows = scale_rows(x.shape[0], offsets).to(x.device)
    has_place = rows >= 0
    scales = empty_scales(num_scale_rows(counts), codes.shape[1], x.device)
    scales[check_indices(rows[has_place], len(scales), "scale rows")] = codes[has_place]
    values = torch.empty(
        (len(x), x.shape[1] // form.codes_per_byte), dtype=torch.uint8, device=x.device
    )
    live = slice(0, offsets[-1])
    values[live] = element_codes(blocks[live], codes[live], form)
    return values, scales


@seam("scale.row-groups-mix-rows")
def block_amax(magnitudes: Tensor) -> Tensor:
    """The largest magnitude of each block: [T, G, elements] -> [T, G].

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

    GEMMs load the padding of tiles too, and some apply it to real rows (PR 38148).
    """
    assert num_rows % SCALE_TILE == 0
    return torch.empty((num_rows, num_blocks), dtype=torch.uint8, device=device).zero_()


def scale_codes(amax: Tensor, form: BlockFormat) -> Tensor:
    """The scale codes uint8 of blocks with the largest magnitudes `amax` [T, G].

    e4m3: the nearest to amax / element_max. e8m0: the power of two that brings amax to the top
    binade of the elements.
    """
    if form.scale == "e4m3":
        scale = (amax / form.element_max).clamp(max=448.0)
        return scale.to(torch.float8_e4m3fn).view(torch.uint8)
    exponent = torch.frexp(amax).exponent + (126 - form.exponent_max)
    code = torch.where(amax == 0, 0, exponent).clamp(0, 254)
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
    size, code = scaled.abs(), torch.zeros(scaled.shape, dtype=torch.uint8, device=scaled.device)
    for place, border in enumerate(_E2M1_BORDERS):
        code += (size >= border) if place % 2 else (size > border)
    code |= (scaled.signbit() & (code > 0)).to(torch.uint8) << 3
    return code[:, 0::2] | code[:, 1::2] << 4
