"""A call of `quantize_blocks`, beside its reference."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.ops.parts.block_formats import FORMATS, decoded_scales, decoded_values, num_scale_rows
from harness.ops.parts.call import KernelCall, Setting, prepared
from harness.ops.parts.judged import Rows
from harness.ops.quantize_blocks import inputs, reference
from harness.ops.quantize_blocks.params import QuantizeBlocksParams


def prepare(params: QuantizeBlocksParams, setting: Setting) -> KernelCall:
    given, kept = prepared(inputs.draw(params, setting.seed), setting)
    form = FORMATS[params.block_format]

    def observe(outputs: tuple[Tensor, ...]) -> list[Rows]:
        """values [T, C] and scales [S, G], as codes, beside the reference; both are decoded
        first.
        """
        values = decoded_values(outputs[0], form)
        scales = decoded_scales(outputs[1], form)
        want = reference.expected(
            kept.x, kept.expert_offsets, block_format=params.block_format, chosen=(values, scales)
        )
        # Scale rows of padding are promised too: code 0.
        every = torch.ones(len(scales), dtype=torch.bool)
        return [
            Rows("values", values, want.live, want.values, "quantize_blocks", "row"),
            Rows("scales", scales, every, want.scales, "quantize_blocks", "scale row"),
        ]

    dims = {
        "T": len(given.x),
        "Y": params.width // form.codes_per_byte,
        "Z": num_scale_rows(list(params.expert_rows)),
        "G": params.width // form.block,
    }
    return KernelCall.of("quantize_blocks", given, kept, dims, (torch.uint8, torch.uint8), observe)
