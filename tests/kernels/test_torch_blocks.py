"""Block quantization on a CPU: every code is the reference's, and rows of nobody reach nothing."""

from __future__ import annotations

import pytest
import torch

from harness.ops.parts.block_formats import FORMATS, decoded_scales, decoded_values
from harness.ops.quantize_blocks import reference as quantize_blocks_reference
from harness.ops.quantize_blocks.kernels.dense import quantize_blocks

ROWS = [3, 0, 130, 1]
OFFSETS = torch.tensor([0, 3, 3, 133, 134], dtype=torch.int32)


def rows(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.exp2(torch.randint(-8, 9, (140, 1), generator=generator).float())
    return (sizes * torch.randn(140, 64, generator=generator)).to(torch.bfloat16)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("seed", range(4))
def test_codes_are_those_of_the_reference_to_the_bit(name: str, seed: int) -> None:
    x, form = rows(seed), FORMATS[name]
    x[1] = 0
    values, scales = quantize_blocks(x, OFFSETS, block_format=name)
    want = quantize_blocks_reference.expected(x, OFFSETS, block_format=name)
    assert torch.equal(decoded_values(values, form)[:134].double(), want.values[:134])
    assert torch.equal(decoded_scales(scales, form).double(), want.scales)


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_comes_back_within_half_a_step_of_its_format(name: str) -> None:
    x, form = rows(), FORMATS[name]
    values, scales = quantize_blocks(x, torch.tensor([0, 128]), block_format=name)
    scale = decoded_scales(scales, form)[:128].repeat_interleave(form.block, dim=1)
    back = decoded_values(values, form)[:128] * scale
    step = 0.25 if form.element == "e2m1" else 0.125
    # Half a step of the element, or of the smallest one; the scale of e4m3 is itself off by up to
    # 1/16.
    allowed = step * x[:128].float().abs() + scale * (0.25 if form.element == "e2m1" else 2.0**-9)
    assert bool(((back - x[:128].float()).abs() <= 1.2 * allowed).all())


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("fill", [0.0, 1.0, 448.0, float("nan"), float("inf")])
def test_rows_of_nobody_change_no_bit(name: str, fill: float) -> None:
    x = rows()
    values, scales = quantize_blocks(x, OFFSETS, block_format=name)
    x[134:] = fill
    again, scales_again = quantize_blocks(x, OFFSETS, block_format=name)
    assert torch.equal(again[:134], values[:134])
    assert torch.equal(scales_again, scales)


@pytest.mark.parametrize("name", FORMATS)
def test_a_nan_spoils_its_own_block_and_no_other(name: str) -> None:
    x, form = rows(), FORMATS[name]
    x[2, 0] = float("nan")
    _, scales = quantize_blocks(x, OFFSETS, block_format=name)
    bad = decoded_scales(scales, form).isnan()
    assert bad.nonzero().tolist() == [[2, 0]]
