"""A call of `quantize_fp8`, beside its reference."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.ops.parts.call import KernelCall, Setting, by_rows, prepared
from harness.ops.parts.judged import Rows
from harness.ops.quantize_fp8 import inputs, reference
from harness.ops.quantize_fp8.contract import SCALED_BLOCK
from harness.ops.quantize_fp8.params import QuantizeFp8Params


def prepare(params: QuantizeFp8Params, setting: Setting) -> KernelCall:
    given, kept = prepared(inputs.draw(params, setting.seed), setting)

    def observe(outputs: tuple[Tensor, ...]) -> list[Rows]:
        """x8 [T, K] fp8, and scale [1] or [T, 1 or blocks] float32, beside the reference."""
        x8, scale = outputs
        blocks = scale.shape[1] if scale.ndim == 2 else 0
        want = reference.expected(kept.x, kept.num_live, blocks=blocks)
        scales = want.live if blocks else torch.ones(1, dtype=torch.bool, device=scale.device)
        return [
            Rows("x8", x8, want.live, want.scaled, "quantize_fp8", "token"),
            Rows(
                "scale", by_rows(scale), scales, by_rows(want.scale), "quantize_fp8.scale", "scale"
            ),
        ]

    dims = {"T": params.num_tokens, "K": params.width}
    call = KernelCall.of(
        "quantize_fp8", given, kept, dims, (torch.float8_e4m3fn, torch.float32), observe
    )
    # Scales of each row, or of each block of a row, are allowed too: they keep rows apart.
    x8_shapes, scale_shapes = call.shapes
    by_row = tuple((params.num_tokens, blocks) for blocks in {1, params.width // SCALED_BLOCK or 1})
    call.shapes = (x8_shapes, scale_shapes + by_row)
    return call
