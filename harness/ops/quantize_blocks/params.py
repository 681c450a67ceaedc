"""The parameters of a call of `quantize_blocks`. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from harness.core.call_words import ROW_VALUES, RowValues
from harness.core.params import KernelParams, Length, Tokens


class QuantizeBlocksParams(KernelParams):
    """One call of `quantize_blocks`: rows of `expert_rows` experts one after another, then rows of
    no expert.
    """

    block_format: Literal["nvfp4", "mxfp4", "mxfp8"] = "nvfp4"
    expert_rows: tuple[Length, ...] = (5,)
    orphan_rows: Length = Field(
        default=3, description="rows behind the rows of all experts, which belong to none"
    )
    zero_rows: Length = Field(default=0, description="first rows that hold zeros")
    width: Tokens = 64
    values: tuple[RowValues, ...] = ROW_VALUES

    BLOCKS: ClassVar[dict[str, int]] = {"nvfp4": 16, "mxfp4": 32, "mxfp8": 32}
    """Elements of a block, as in :mod:`harness.ops.parts.block_formats`, which needs torch."""

    def problems(self) -> Iterator[str]:
        block = self.BLOCKS[self.block_format]
        if self.width % block:
            yield f"width {self.width} is no multiple of the block of {block}"
        if not any(self.expert_rows):
            yield "expert_rows has no row; give one expert some"


PARAMS = QuantizeBlocksParams
