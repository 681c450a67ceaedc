"""How a paged cache stores a token: a record of bytes, and where in its block each byte lies.

A reference, written from the documented formats (docs/reference.md) and apart from the
kernels. `encode` and `decode` know a record by itself, `places` knows the block. A block is the
memory of the page's P tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from harness.ops.parts.block_formats import FORMATS as BLOCK_FORMATS
from harness.ops.parts.block_formats import decoded_scales, decoded_values, magnitudes

E4M3_MAX = 448.0
TILE = 16
"""Tokens, and bytes of each, in a tile of the shuffled layout: a load of 16 bytes for each lane of
a matrix core.
"""


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """The record of one token:

    `width` elements in `parts`, the bytes of values, of scales and of what follows.

    - `quantized`: the first so many elements are stored in fewer bits than bfloat16, the others
      exactly.
    - `group`: elements that share a scale in the record; 0 if a scale of the whole cache is the
      only one.
    - `layout`: `rows` has the records one after another. `planar` has the values of all tokens,
      then all scales. `tiled` is planar with values in tiles of 16 tokens x 16 bytes; `swizzled` is
      planar with the scales of 4 tokens interleaved.
    """

    width: int
    quantized: int
    group: int
    parts: tuple[int, ...]
    layout: Literal["rows", "planar", "tiled", "swizzled"] = "rows"

    @property
    def num_bytes(self) -> int:
        return sum(self.parts)

    @property
    def is_scaled(self) -> bool:
        """Whether values are multiplied by a scale of the whole cache too."""
        return self.quantized > 0 and self.group in (0, 16)


RECORDS = {
    "bf16": RecordFormat(576, 0, 0, (1152,)),
    "fp8_e4m3": RecordFormat(576, 576, 0, (576,)),
    "fp8_ds_mla": RecordFormat(576, 512, 128, (512, 16, 128)),
    "indexer_planar": RecordFormat(128, 128, 128, (128, 4), "planar"),
    "indexer_interleaved": RecordFormat(128, 128, 128, (128, 4)),
    "indexer_shuffled": RecordFormat(128, 128, 128, (128, 4), "tiled"),
    "nvfp4_linear": RecordFormat(128, 128, 16, (64, 8), "planar"),
    "nvfp4_swizzled": RecordFormat(128, 128, 16, (64, 8), "swizzled"),
}
"""The record of each `RecordFormat` of :mod:`harness.core.op_params`."""


def places(record_format: str, page_size: int) -> Tensor:
    """The byte of the block at which each byte of each token's record lies: [P, bytes of a record]
    int64.
    """
    form = RECORDS[record_format]
    token = torch.arange(page_size)[:, None]
    if form.layout == "rows":
        return token * form.num_bytes + torch.arange(form.num_bytes)
    values, scales = (torch.arange(size) for size in form.parts)
    value_place = token * len(values) + values
    scale_place = token * len(scales) + scales
    if form.layout == "tiled":
        tile = token // TILE * TILE * len(values) + values // TILE * TILE * TILE
        # Tiles of 16 x 16 bytes, one token a row of the tile, as a matrix core loads them.
        value_place = tile + token % TILE * TILE + values % TILE
    elif form.layout == "swizzled":
        quarter = len(scales) // 4
        scale_place = (
            # Four tokens share four rows, so that one load of 4 bytes has a scale of each of them.
            (token // 4 * 4 + scales // quarter) * len(scales) + scales % quarter * 4 + token % 4
        )
    return torch.cat((value_place, page_size * len(values) + scale_place), dim=1)


def encode(rows: Tensor, record_format: str, scale: float | None = None) -> Tensor:
    """Records [T, bytes] uint8 of rows [T, W] of any float type.

    A `scale` of the whole cache divides the values.
    """
    form = RECORDS[record_format]
    if not form.quantized:
        return _bytes(rows.to(torch.bfloat16))
    values = rows[:, : form.quantized].double() / (1.0 if scale is None else scale)
    if not form.group:
        return _bytes(_rounded(values))
    groups = values.view(len(values), -1, form.group)
    amax = groups.abs().amax(dim=-1, keepdim=True)
    if form.group == 16:
        # 6 is the largest number of e2m1.
        scales = _rounded(amax / 6.0)
        return torch.cat((_e2m1_codes(groups / scales.double()), _bytes(scales.flatten(1))), dim=1)
    # A group of zeros would have scale 0, and 0 / 0 is no code.
    scales = (amax.clamp(min=1e-4) / E4M3_MAX).float()
    codes = _rounded(groups / scales.double()).flatten(1)
    rest = rows[:, form.quantized :].to(torch.bfloat16)
    return torch.cat((_bytes(codes), _bytes(scales.flatten(1)), _bytes(rest)), dim=1)


def decode(records: Tensor, record_format: str, scale: float | None = None) -> Tensor:
    """Rows [T, W] float64 of records [T, bytes] uint8."""
    form = RECORDS[record_format]
    if not form.quantized:
        return records.view(torch.bfloat16).double()
    values, *others = records.split_with_sizes(list(form.parts), dim=1)
    codes = decoded_values(values, BLOCK_FORMATS["nvfp4" if form.group == 16 else "mxfp8"]).double()
    if form.group:
        is_e4m3 = form.group == 16
        scales = (
            decoded_scales(others[0], BLOCK_FORMATS["nvfp4"])
            if is_e4m3
            else _floats(others[0], torch.float32)
        )
        codes = codes * scales.double().repeat_interleave(form.group, dim=1)
    rows = codes * (1.0 if scale is None else scale)
    return torch.cat(
        (rows, *(_floats(other, torch.bfloat16).double() for other in others[1:])), dim=1
    )


def rounding(rows: Tensor, record_format: str, scale: float | None) -> Tensor | None:
    """How far a record may be from each element of rows [T, W], float64:

    None but for scales of 16 elements.

    A scale is the group's largest / 6, rounded to e4m3 by 2^-4 of itself, or by 2^-10 below normal
    numbers. A code is off by one scale at most (5 lies between 4 and 6); where the scale was
    rounded down, the largest saturates.
    """
    form = RECORDS[record_format]
    factor = 1.0 if scale is None else scale
    if form.group != 16:
        return None
    exact = rows.double().view(len(rows), -1, form.group).abs().amax(dim=-1) / (6 * factor)
    moved = (exact / 16).clamp(min=2.0**-10)
    return (
        torch.maximum(exact + moved, 6 * moved).repeat_interleave(form.group, dim=1)
        * factor
        * (1 + 1e-6)
    )


def stored(cache: Tensor, slots: Tensor, record_format: str) -> Tensor:
    """The records [n, bytes] of slots [n] int64 in a cache [N, P, bytes] uint8."""
    place = places(record_format, cache.shape[1])[slots % cache.shape[1]]
    return cache.flatten(1)[(slots // cache.shape[1])[:, None], place]


def store(records: Tensor, cache: Tensor, slots: Tensor, record_format: str) -> None:
    """Put records [n, bytes] in the slots [n] int64 of a cache [N, P, bytes] uint8.

    Blocks may have any stride.
    """
    block = slots // cache.shape[1]
    token = slots % cache.shape[1]
    if RECORDS[record_format].layout == "rows":
        cache[block, token] = records
    else:
        cache.flatten(1)[block[:, None], places(record_format, cache.shape[1])[token]] = records


def spans(cache: Tensor, slots: Tensor, record_format: str) -> Iterator[Tensor]:
    """Views [n] uint8 of the bytes of `slots` [A] int64 in `cache` [N, P, bytes] uint8, each as
    long as possible.
    """
    page_size = cache.shape[1]
    place = places(record_format, page_size)
    blocks = cache.flatten(1)
    for block in sorted(set((slots // page_size).tolist())):
        taken = place[slots[slots // page_size == block] % page_size].flatten().sort().values
        starts = torch.cat((torch.ones(1, dtype=torch.bool), taken.diff() > 1)).nonzero().flatten()
        # As few views as possible: each is filled and compared by itself.
        for run in taken.tensor_split(starts[1:]):
            yield blocks[block, int(run[0]) : int(run[-1]) + 1]


def cached_latents(latents: Tensor, dtype: torch.dtype, kv_scale: float | None) -> Tensor:
    """`latents` [..., D] float32 as a cache of `dtype` holds them.

    float8_e4m3fn is divided by `kv_scale` and saturates; uint8 are records [..., 656] of
    `fp8_ds_mla`.
    """
    if dtype == torch.uint8:
        return encode(latents.flatten(0, -2), "fp8_ds_mla").view(*latents.shape[:-1], -1)
    if kv_scale is None:
        return latents.to(dtype)
    return (latents / kv_scale).clamp(-E4M3_MAX, E4M3_MAX).to(dtype)


def _rounded(values: Tensor) -> Tensor:
    return values.clamp(-E4M3_MAX, E4M3_MAX).float().to(torch.float8_e4m3fn)


def _e2m1_codes(scaled: Tensor) -> Tensor:
    """Bytes [T, C] of the nearest codes of [T, G, 16], two a byte, the first in the low half."""
    values = scaled.flatten(1)
    # A group with the scale 0 has codes of 0.
    sizes = values.nan_to_num(0.0, posinf=0.0, neginf=0.0).abs()
    rising = magnitudes("e2m1")
    # Halfway between two magnitudes the smaller one is taken.
    halfway = (rising[1:] + rising[:-1]) / 2
    # The sign is the highest of the 4 bits.
    codes = torch.bucketize(sizes, halfway) | (values < 0).long() << 3
    return (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


def _floats(records: Tensor, dtype: torch.dtype) -> Tensor:
    return records.contiguous().view(dtype)
