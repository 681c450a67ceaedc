"""The contract of `quantize_blocks`."""

from __future__ import annotations

from harness.core.contract import Arg, Keyword, Op, Out


class QuantizeBlocks(Op):
    """Codes with a scale for each block of a row (nvfp4, mxfp4, mxfp8), rows sorted by expert.

    Rows past expert_offsets[-1] influence nothing. Scale rows that round an expert's up to tiles of
    128 are code 0.
    """

    name = "quantize_blocks"

    x = Arg(
        "T K",
        "bfloat16",
        "float32 in the reference engine",
        unowned={"scale.pad": "rows of no expert"},
    )
    expert_offsets = Arg("X+1", "int32")

    block_format = Keyword("str", "`nvfp4`, `mxfp4` or `mxfp8`")

    values = Out("T Y", "uint8", site="output")
    scales = Out("Z G", "uint8", site="scale.blocks")


CONTRACT = QuantizeBlocks()
