"""The parameters of a call of `index_logits`. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from harness.core.call_words import PageStride
from harness.core.ops import PAGE_SIZE
from harness.core.params import Count, FlatLayout, KernelParams, Length


class IndexLogitsParams(KernelParams):
    """One call of `index_logits`. The last `query_len` tokens of each request ask."""

    CACHE_TYPE: ClassVar[str] = "kv"
    page_size: ClassVar[int] = PAGE_SIZE

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


PARAMS = IndexLogitsParams
