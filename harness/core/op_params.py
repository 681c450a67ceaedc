"""The parameters of a call of each op. No torch here. Letters are as in :mod:`harness.core.ops`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from harness.core.index_params import (
    IndexLogitsParams,
    MapIndicesParams,
    PageStride,
    SelectTopkParams,
)
from harness.core.ops import latent_rank
from harness.core.params import Count, FlatLayout, KernelParams, KvType, Length
from harness.core.shapes import CacheLayout

PageOrder = Literal["random", "rising", "falling", "repeated", "prefix", "same"]
"""How the pages of a request lie, and which it shares; see
:func:`harness.kernels.ops.decode_conditions.arranged`.
"""
SparseOrder = Literal["random", "rising", "falling", "some", "same", "holes"]
DecodeValues = Literal["plain", "zero", "ties", "one_key", "large"]
"""The scores of a request's keys: all 0, equal largest ones, one key that outweighs the others, a
score of 1.5e4.
"""
RowValues = Literal["plain", "zero", "tiny", "large"]
"""The size of a row's elements: as drawn, all 0, a thousandth, 16,384 times as large."""
SlotOrder = Literal["random", "rising", "falling", "from_first", "from_last"]
"""The slots of the tokens of a call: scattered, one behind the other, or so from the first or last
slot of a page.
"""
Padded = Literal["end", "between"]
PAGE_ORDER = Field(
    default=(), description="order of each request's pages, or which it shares; repeated for more"
)
ROW_VALUES = Field(default=(), description="size of each row; repeated for more rows")
PAGES_OF_MANAGER_BLOCK = 4
"""Pages of one block of the manager in the layout `manager_blocks`."""
HighBlocks = Annotated[
    int, Field(ge=0, le=2**20, description="unused blocks below the blocks of the call")
]


def rank_problem(kv_lora_rank: int, rope_dim: int) -> Iterator[str]:
    """Kernels know only D = R + E, so R must follow from D."""
    if latent_rank(kv_lora_rank + rope_dim) != kv_lora_rank:
        yield (
            f"kv_lora_rank {kv_lora_rank} is not the largest power of two below kv_lora_rank +"
            f" qk_rope_head_dim ({kv_lora_rank + rope_dim})"
        )


class MlaDecodeParams(KernelParams):
    """One call of `mla_decode`."""

    CACHE_TYPE: ClassVar[str] = "kv"
    KEYWORDS: ClassVar[tuple[str, ...]] = ("window",)

    kernel: str = "tiled"
    kv: KvType = "bf16"
    seq_lens: tuple[Length, ...] = (1, 63, 64, 65, 130)
    query_len: Count = 1
    num_heads: Count = 16
    kv_lora_rank: Count = 512
    qk_rope_head_dim: Count = 64
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
        yield from rank_problem(self.kv_lora_rank, self.qk_rope_head_dim)


class MlaDecodeSparseParams(KernelParams):
    """One call of `mla_decode_sparse`. Token i attends to `num_chosen[i]` slots, at most `topk`."""

    CACHE_TYPE: ClassVar[str] = "kv"

    kernel: str = "gather"
    kv: KvType | Literal["fp8_ds_mla"] = "bf16"
    num_chosen: tuple[Length, ...] = (16, 0, 1, 5)
    topk: Count = 16
    slot_order: tuple[SparseOrder, ...] = Field(
        default=(),
        description=(
            "each token's slots: their order, those of the token before, or -1 between them"
        ),
    )
    values: tuple[DecodeValues, ...] = Field(
        default=(), description="scores of each token's slots; repeated"
    )
    num_blocks: Annotated[int, Field(ge=2, le=4096)] = 4
    num_heads: Count = 16
    kv_lora_rank: Count = 512
    qk_rope_head_dim: Count = 64
    layout: FlatLayout = "contiguous"

    def problems(self) -> Iterator[str]:
        if self.kv == "fp8_ds_mla" and (self.kv_lora_rank, self.qk_rope_head_dim) != (512, 64):
            yield (
                "a record of fp8_ds_mla holds kv_lora_rank 512 and qk_rope_head_dim 64, no other"
                " sizes"
            )


class ContextAttentionParams(KernelParams):
    """One call of `context_attention`: new tokens and context tokens of each request in this
    chunk.
    """

    query_lens: tuple[Length, ...] = (5, 3, 4)
    context_lens: tuple[Length, ...] = (70, 17, 0)
    num_heads: Count = 4
    qk_head_dim: Count = 192
    v_head_dim: Count = 128
    values: tuple[DecodeValues, ...] = Field(
        default=(), description="scores of each request's keys; repeated"
    )

    def problems(self) -> Iterator[str]:
        queries, contexts = self.query_lens, self.context_lens
        if len(queries) != len(contexts):
            yield (
                f"query_lens has {len(queries)} requests and context_lens {len(contexts)}; give"
                " each one of both"
            )
        if not queries or min(queries) < 1:
            yield "query_lens holds a request without new tokens"
        if not any(contexts):
            yield "context_lens has no token; give one request some context"


MergeSide = Literal["both", "prefix_above", "suffix_above", "no_prefix", "no_suffix", "neither"]
"""The sides of a row: both, both with an lse 200 above the other's, or not both."""


class MergeAttnStatesParams(KernelParams):
    """One call of `merge_attn_states`: the first `num_with_context` of `num_tokens` tokens have
    context.
    """

    LIMITS: ClassVar[dict[str, str]] = {
        "num_with_context": "num_tokens",
        "empty_prefix_rows": "num_with_context",
        "empty_suffix_rows": "num_with_context",
    }

    num_tokens: Count = 12
    num_with_context: Length = 7
    empty_prefix_rows: Length = Field(
        default=0, description="rows of the context part that the lse marks empty"
    )
    empty_suffix_rows: Length = Field(
        default=0, description="how many of these rows have an empty suffix too"
    )
    empty_lse: Literal["-inf", "+inf"] = "-inf"
    lse_gap: Length = Field(
        default=0, description="how far the lse of both sides lie apart, each above in turn"
    )
    padded: Literal["none", "suffix", "both"] = Field(
        default="none",
        description=(
            "which sides are columns of a wider tensor: both in a first merge, the suffix alone in"
            " later ones"
        ),
    )
    num_heads: Count = 4
    v_head_dim: Count = 128
    sides: tuple[MergeSide, ...] = Field(
        default=(),
        description="the sides that each row with context has, in place of the counts; repeated",
    )


class WriteKvParams(KernelParams):
    """One call of `write_kv` for `num_tokens` tokens; the last `num_padded` of them have slot
    -1.
    """

    CACHE_TYPE: ClassVar[str] = "kv"

    kv: KvType = "bf16"
    num_tokens: Count = 9
    num_padded: Length = 3
    large_rows: Length = Field(
        default=0, description="first tokens with values past the largest number of e4m3"
    )
    kv_lora_rank: Count = 512
    qk_rope_head_dim: Count = 64
    layout: FlatLayout = "contiguous"
    slot_order: SlotOrder = "random"
    padded_at: Padded = "end"
    high_blocks: HighBlocks = 0
    contiguous: bool = Field(
        default=True, description="false: the latents are slices of a wider tensor"
    )
    values: tuple[RowValues, ...] = ROW_VALUES

    def problems(self) -> Iterator[str]:
        if self.num_padded >= self.num_tokens:
            yield "num_padded leaves no token to store"

    @classmethod
    def settled(cls, values: dict[str, Any]) -> dict[str, Any]:
        return values | {"num_padded": min(values["num_padded"], values["num_tokens"] - 1)}


class QuantizeFp8Params(KernelParams):
    """One call of `quantize_fp8` on `num_tokens` rows; the first `num_live` of them are live."""

    LIMITS: ClassVar[dict[str, str]] = {"num_live": "num_tokens"}

    num_tokens: Count = 8
    num_live: Annotated[int, Field(ge=1, le=100_000)] = 5
    zero_rows: Length = Field(default=0, description="first rows that hold zeros")
    width: Count = 256
    values: tuple[RowValues, ...] = ROW_VALUES
    peaks: tuple[Literal["first", "inner", "last"], ...] = Field(
        default=(), description="where the largest element of each row is; repeated for more rows"
    )


class RouteExpertsParams(KernelParams):
    """One call of `route_experts`. Tokens from `num_live` on are padding."""

    LIMITS: ClassVar[dict[str, str]] = {
        "num_experts_per_tok": "num_experts",
        "num_live": "num_tokens",
    }

    num_tokens: Count = 12
    num_live: Count | None = Field(
        default=None, description="tokens that are live; all when left out"
    )
    num_experts: Count = 16
    num_experts_per_tok: Count = 4
    values: tuple[Literal["plain", "one", "large", "flat", "negative"], ...] = Field(
        default=(), description="logits of each token, without ties; repeated for more tokens"
    )

    def gives(self) -> frozenset[str]:
        return super().gives() | {"experts"}


class AlignExpertsParams(KernelParams):
    """One call of `align_experts`.

    The first `num_used` experts are chosen, the others by no token.
    """

    LIMITS: ClassVar[dict[str, str]] = {
        "num_experts_per_tok": "num_used",
        "num_used": "num_experts",
    }

    num_tokens: Count = 12
    num_experts: Count = 16
    num_used: Count = 16
    num_experts_per_tok: Count = 4
    block_size: Count = 16
    is_spread: bool = Field(default=False, description="the chosen experts lie among the others")

    def gives(self) -> frozenset[str]:
        return frozenset()


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
    width: Count = 64
    values: tuple[RowValues, ...] = ROW_VALUES

    BLOCKS: ClassVar[dict[str, int]] = {"nvfp4": 16, "mxfp4": 32, "mxfp8": 32}
    """Elements of a block, as in :mod:`harness.kernels.ops.block_formats`, which needs torch."""

    def problems(self) -> Iterator[str]:
        block = self.BLOCKS[self.block_format]
        if self.width % block:
            yield f"width {self.width} is no multiple of the block of {block}"
        if not any(self.expert_rows):
            yield "expert_rows has no row; give one expert some"


RecordFormat = Literal[
    "bf16",
    "fp8_e4m3",
    "fp8_ds_mla",
    "indexer_planar",
    "indexer_interleaved",
    "indexer_shuffled",
    "nvfp4_linear",
    "nvfp4_swizzled",
]
"""How a cache stores a token, as in :mod:`harness.kernels.ops.record_formats`, which needs torch.
"""


class RecordParams(KernelParams):
    """Common to `write_records` and `read_records`."""

    CACHE_TYPE: ClassVar[str] = "kv"

    kv: RecordFormat = "bf16"
    layers: Annotated[int, Field(ge=1, le=8)] = Field(
        default=1,
        description=(
            "layers whose blocks lie side by side in one allocation; the cache is the last's part"
        ),
    )
    high_blocks: HighBlocks = 0


class WriteRecordsParams(RecordParams):
    """One call of `write_records` for `num_tokens` tokens, and then `num_padded` tokens with slot
    -1.
    """

    num_tokens: Count = 9
    num_padded: Length = 3
    slot_order: SlotOrder = "random"
    padded_at: Padded = "end"
    values: tuple[RowValues, ...] = ROW_VALUES


class ReadRecordsParams(RecordParams):
    """One call of `read_records` for requests of these lengths."""

    seq_lens: tuple[Length, ...] = (5, 64, 65)
    table_pad: Annotated[int, Field(ge=0, le=64)] = 1
    page_order: tuple[PageOrder, ...] = PAGE_ORDER

    def problems(self) -> Iterator[str]:
        if not any(self.seq_lens):
            yield "seq_lens has no live request; give one a length"


KERNEL_PARAMS: dict[str, type[KernelParams]] = {
    "mla_decode": MlaDecodeParams,
    "mla_decode_sparse": MlaDecodeSparseParams,
    "index_logits": IndexLogitsParams,
    "select_topk": SelectTopkParams,
    "map_indices": MapIndicesParams,
    "context_attention": ContextAttentionParams,
    "merge_attn_states": MergeAttnStatesParams,
    "write_kv": WriteKvParams,
    "quantize_fp8": QuantizeFp8Params,
    "route_experts": RouteExpertsParams,
    "align_experts": AlignExpertsParams,
    "quantize_blocks": QuantizeBlocksParams,
    "write_records": WriteRecordsParams,
    "read_records": ReadRecordsParams,
}
"""The parameters of a kernel case, by op. A planner is judged through its decode."""
