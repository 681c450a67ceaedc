"""The parameters of a call of `mla_decode`. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from harness.core.call_words import (
    PAGE_ORDER,
    DecodeValues,
    HighBlocks,
    PageOrder,
    PageStride,
    rank_problem,
)
from harness.core.ops import PAGE_SIZE
from harness.core.params import Count, KernelParams, KvType, Length
from harness.core.shapes import CacheLayout


class MlaDecodeParams(KernelParams):
    """One call of `mla_decode`."""

    CACHE_TYPE: ClassVar[str] = "kv"
    KEYWORDS: ClassVar[tuple[str, ...]] = ("window",)
    SUSCEPTIBLE: ClassVar[Mapping[str, Any]] = {"seq_lens": (1, 63, 64, 65, 130, 0)}
    # 4 tokens are speculative decoding. 64 are a prompt, which some backends give to a decode
    # kernel; it may then load whole pages.
    SUSCEPTIBLE_TOKENS: ClassVar[Mapping[int, tuple[int, ...]]] = {
        1: (),
        4: (4, 63, 64, 67, 130, 0),
        64: (64, 65, 100, 127, 130, 0),
    }

    kernel: str = "tiled"
    kv: KvType = "bf16"
    seq_lens: tuple[Length, ...] = (1, 63, 64, 65, 130)
    query_len: Count = 1
    num_heads: Count = 16
    kv_lora_rank: Count = 512
    qk_rope_head_dim: Count = 64
    page_size: Literal[16, 32, 64, 128] = Field(default=64, description="slots of a page")
    num_spare_blocks: int = Field(default=4, ge=1, description="pages that belong to no request")
    table_pad: Annotated[int, Field(ge=0, le=64)] = 3
    table_entries: Literal["filled", "zero", "out_of_range"] = Field(
        default="filled",
        description=(
            "entries of the table past a request's pages: as the poison fills them, or these"
        ),
    )
    planned: bool = Field(
        default=True, description="pass a plan made by the kernel's own mla_decode_plan"
    )
    contiguous_q: bool = Field(default=True, description="false: q is a slice of a wider tensor")
    window: Count | None = Field(
        default=None, description="keys that a query sees at most, for kernels that can"
    )
    page_stride: PageStride = 0
    layout: CacheLayout = "contiguous"
    graph: Literal["none", "full"] = Field(
        default="none",
        description="full: the kernel is captured with the rows of the batch in another order",
    )
    launches: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=1, description="launches on the same inputs"
    )
    page_order: tuple[PageOrder, ...] = PAGE_ORDER
    high_blocks: HighBlocks = 0
    values: tuple[DecodeValues, ...] = Field(
        default=(), description="scores of each request's keys; repeated for more requests"
    )

    def resized(self, size: str, value: int, changes: dict[str, Any]) -> dict[str, Any]:
        if not self.page_stride or size == "num_heads":
            return {size: value}
        # Pages that are apart stay apart, as they get larger.
        sizes = {
            "kv_lora_rank": self.kv_lora_rank,
            "qk_rope_head_dim": self.qk_rope_head_dim,
            **changes,
            size: value,
        }
        page = self.page_size * (sizes["kv_lora_rank"] + sizes["qk_rope_head_dim"])
        return {size: value, "page_stride": max(self.page_stride, page + 64)}

    def problems(self) -> Iterator[str]:
        if not self.seq_lens:
            yield "seq_lens is empty; give at least one length"
        if self.has_graph and len(set(self.seq_lens)) < 2:
            yield "a graph needs two different seq_lens, so that its inputs change"
        if any(0 < length < self.query_len for length in self.seq_lens):
            yield (
                f"seq_lens holds a length below query_len {self.query_len}; the query tokens are"
                " part of a request's length"
            )
        if self.page_stride and self.layout not in ("contiguous", "large"):
            yield f"layout {self.layout} has a page_stride of its own; leave it 0"
        if self.planned and self.page_size != PAGE_SIZE:
            yield f"planners count pages of {PAGE_SIZE} slots; give planned: false"
        yield from rank_problem(self.kv_lora_rank, self.qk_rope_head_dim)


PARAMS = MlaDecodeParams
