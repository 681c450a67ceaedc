"""The contract of `quantize_fp8`."""

from __future__ import annotations

from harness.core.contract import Arg, Keyword, Op, Out

SCALED_BLOCK = 128
"""Elements of a row with one scale, as DeepSeek's fp8 activations have them."""


class QuantizeFp8(Op):
    """Per-tensor e4m3 quantization; the amax covers live rows only.

    A kernel may return scales of rows [T, 1] or of blocks of a row [T, K / 128] instead.
    """

    name = "quantize_fp8"

    x = Arg(
        "T K",
        "bfloat16",
        "float32 in the reference engine",
        unowned={"scale.pad": "rows past the live ones"},
        must_be_finite=True,
    )

    num_live = Keyword("int | int32 tensor [1] | None", "live rows; None: all")

    x8 = Out("T K", "float8_e4m3fn", site="output")
    scale = Out("1", "float32", site="output")


CONTRACT = QuantizeFp8()
