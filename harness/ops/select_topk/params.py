"""The parameters of a call of `select_topk`. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from harness.core.params import Count, KernelParams, Length

LogitValues = Literal["plain", "plateau", "zero", "ties", "signed_zeros"]
"""Logits of a row: all unlike; exact 0.0 from a rank below K on, as sums of ReLUs are; all 0.0; few
unlike values; and zeros of both signs.
"""


class SelectTopkParams(KernelParams):
    """One call of `select_topk`."""

    seq_lens: tuple[Length, ...] = (15, 16, 17, 0, 1, 90)
    query_len: Count = 1
    topk: Count = 16
    spare_columns: Length = Field(
        default=7, description="columns past the longest row, as max_model_len has them"
    )
    values: tuple[LogitValues, ...] = Field(
        default=("plain",), description="repeated for more rows"
    )
    row_stride: Annotated[int, Field(ge=0, le=2**32)] = Field(
        default=0, description="elements from row to row; 0: as many as columns"
    )
    launches: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=1, description="launches on the same inputs"
    )
    graph: Literal["none", "full"] = Field(
        default="none",
        description="full: the kernel is captured with the requests in another order",
    )

    @property
    def cache_layout(self) -> str:
        return "large" if self.row_stride else "contiguous"

    def gives(self) -> frozenset[str]:
        return super().gives() - {"floats"}

    def problems(self) -> Iterator[str]:
        if self.has_graph and len(set(self.seq_lens)) < 2:
            yield "a graph needs two different seq_lens, so that its inputs change"


PARAMS = SelectTopkParams
