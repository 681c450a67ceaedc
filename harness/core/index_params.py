"""The parameters of the stages before sparse attention: index logits, top-k, slots.

No torch here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from harness.core.params import Count, FlatLayout, KernelParams, Length

PageStride = Annotated[
    int, Field(ge=0, le=2**32, description="elements from page to page; 0: as the layout has them")
]


class IndexLogitsParams(KernelParams):
    """One call of `index_logits`. The last `query_len` tokens of each request ask."""

    CACHE_TYPE: ClassVar[str] = "kv"

    kv: Literal["fp32", "bf16", "indexer_planar"] = "bf16"
    seq_lens: tuple[Length, ...] = (1, 63, 64, 65, 0, 130)
    query_len: Count = 1
    num_heads: Count = Field(default=64, description="heads of the indexer")
    index_head_dim: Count = 128
    table_pad: Annotated[int, Field(ge=0, le=64)] = 3
    page_stride: PageStride = 0
    layout: FlatLayout = "contiguous"

    @property
    def cache_layout(self) -> str:
        return "large" if self.page_stride else self.layout

    def problems(self) -> Iterator[str]:
        if self.kv == "indexer_planar" and self.index_head_dim != 128:
            yield "a record of indexer_planar holds index_head_dim 128, no other size"
        if self.page_stride and self.layout not in ("contiguous", "large"):
            yield f"layout {self.layout} has a page_stride of its own; leave it 0"


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


class MapIndicesParams(KernelParams):
    """One call of `map_indices`:

    `query_len` tokens of each request, and then tokens that are not mapped.
    """

    seq_lens: tuple[Length, ...] = (130, 0, 5, 64)
    query_len: Count = 1
    topk: Count = 128
    later_tokens: Length = Field(
        default=2, description="tokens of the batch behind the mapped ones, such as prompts'"
    )
    missing: Literal["last", "scattered"] = Field(
        default="scattered", description="where a list holds -1"
    )
    table_pad: Annotated[int, Field(ge=1, le=64)] = 3
    high_blocks: Annotated[int, Field(ge=0, le=2**24)] = Field(
        default=0, description="unused blocks below the blocks of the requests"
    )

    def gives(self) -> frozenset[str]:
        return super().gives() - {"floats"}
