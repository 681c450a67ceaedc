"""Seeded inputs of `quantize_fp8`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.ops.parts import row_conditions
from harness.ops.parts.inputs import OpInputs, Unowned, randn
from harness.ops.quantize_fp8.params import QuantizeFp8Params


@dataclass(slots=True)
class QuantizeInputs(OpInputs):
    """Arguments of `quantize_fp8`."""

    x: Tensor
    num_live: int


def draw(params: QuantizeFp8Params, seed: int) -> QuantizeInputs:
    """Activations [T, K] bfloat16; rows past `num_live` are padding."""
    generator = torch.Generator().manual_seed(seed)
    x = randn((params.num_tokens, params.width), torch.bfloat16, generator)
    x[: params.zero_rows] = 0.0
    row_conditions.resize_rows(x, params.values)
    row_conditions.move_peaks(x, params.peaks)
    return QuantizeInputs(x, params.num_live, unowned=[Unowned("scale.pad", x[params.num_live :])])
