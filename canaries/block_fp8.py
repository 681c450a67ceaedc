"""Weights as DeepSeek publishes them: e4m3, a float32 scale for each block of 128 x 128 (arXiv
2412.19437, 3.3).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

BLOCK = 128
CONFIG = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [BLOCK, BLOCK],
}
"""`quantization_config` of such a checkpoint."""


def packed(weights: Mapping[str, Tensor], chosen: re.Pattern[str]) -> dict[str, Tensor]:
    """The weights.

    A `chosen` one [rows, columns] is e4m3, and has a `.scale` [row blocks, column blocks] float32.

    Their values must be small integers times a power of two, so that nothing is rounded. Raises
    ValueError otherwise.
    """
    found: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if not chosen.search(name):
            found[name] = weight
            continue
        # The least power of two under which the largest value is 15 or less: 4 bits, as many as
        # e4m3 holds.
        scale = 2.0 ** torch.ceil(torch.log2(weight.abs().max().float() / 15))
        codes = (weight.float() / scale).to(torch.float8_e4m3fn)
        if not torch.equal(codes.float() * scale, weight.float()):
            raise ValueError(f"{name} is not an integer of 4 bits times a power of two")
        found[name] = codes
        blocks = [-(-size // BLOCK) for size in weight.shape]
        found[name.removesuffix("weight") + "scale"] = scale.expand(blocks).contiguous()
    return found
