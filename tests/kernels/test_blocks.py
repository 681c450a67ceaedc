"""Block formats bit by bit, and what the reference of `quantize_blocks` says about rows of
nobody.
"""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from harness.ops.parts.block_formats import (
    FORMATS,
    decoded_scales,
    decoded_values,
    magnitudes,
    num_scale_rows,
)
from harness.ops.quantize_blocks import reference as quantize_blocks_reference

NVFP4, MXFP4, MXFP8 = FORMATS["nvfp4"], FORMATS["mxfp4"], FORMATS["mxfp8"]


def test_four_bit_codes_stand_for_the_numbers_of_e2m1_low_half_first() -> None:
    codes = torch.tensor([[0x10, 0x32, 0x54, 0x76], [0x98, 0xBA, 0xDC, 0xFE]], dtype=torch.uint8)
    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert decoded_values(codes, NVFP4).tolist() == [positive, [-value for value in positive]]


def test_every_code_of_e4m3_stands_for_what_torch_says() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    ours, theirs = decoded_scales(codes, NVFP4), codes.view(torch.float8_e4m3fn).float()
    assert torch.equal(ours.isnan(), theirs.isnan())
    assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())


def test_a_scale_of_e8m0_is_a_power_of_two_or_nan() -> None:
    scales = decoded_scales(torch.tensor([0, 126, 127, 128, 255], dtype=torch.uint8), MXFP4)
    assert scales[:4].tolist() == [2.0**-127, 0.5, 1.0, 2.0]
    assert bool(scales[4].isnan())


@pytest.mark.parametrize("kind", ["e2m1", "e4m3"])
def test_magnitudes_rise_with_their_codes(kind: Literal["e2m1", "e4m3"]) -> None:
    table = magnitudes(kind)
    assert bool((table[1:] > table[:-1]).all())
    assert table[0] == 0
    assert table[-1] == {"e2m1": 6.0, "e4m3": 448.0}[kind]


def test_scales_of_each_expert_begin_a_tile() -> None:
    assert num_scale_rows([1, 0, 128, 129]) == 128 + 0 + 128 + 256


def test_the_reference_rounds_a_tie_to_the_even_code() -> None:
    # amax 6 gives a scale of 1, so that these stand half-way between two numbers of e2m1.
    ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0]
    x = torch.tensor([ties * 2], dtype=torch.bfloat16)
    want = quantize_blocks_reference.expected(x, torch.tensor([0, 1]), block_format="nvfp4")
    assert want.scales[0].tolist() == [1.0]
    assert want.values[0, :8].tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0]


def test_the_reference_leaves_rows_of_nobody_undefined_and_their_scales_unused() -> None:
    x = torch.ones(5, 32, dtype=torch.bfloat16)
    want = quantize_blocks_reference.expected(x, torch.tensor([0, 2, 3]), block_format="nvfp4")
    assert want.live.tolist() == [True, True, True, False, False]
    assert bool(want.values[3:].isnan().all())
    assert [row for row in range(256) if bool(want.scales[row].any())] == [0, 1, 128]
