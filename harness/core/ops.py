"""The table of ops: the contract of a kernel under test, and the parameters of a call. No torch here.

Letters: B requests, S query tokens a request, T tokens, H heads, P page size, R latent rank (`kv_lora_rank`),
E rope dim, D = R + E, V value dim, N blocks, M block-table columns, X experts, k experts a token, C context tokens
(in `quantize_blocks` bytes of a row), G scales a row in S rows, W elements of a row that a record holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from harness.core.params import Count, KvType, Length, Params
from harness.core.registry import Registry

PAGE_SIZE = 64
"""Slots of a KV page; FlashMLA and FlashInfer MLA read whole pages of 64."""

FlatLayout = Literal["contiguous", "block_major", "padded_pages", "large"]
CacheLayout = Literal["contiguous", "block_major", "padded_pages", "manager_blocks", "large"]
"""How the pages of a cache lie in memory; see :mod:`harness.kernels.ops.cache_layouts`. Only a block table shows the
blocks of a manager, a flat slot does not."""
PAGES_OF_MANAGER_BLOCK = 4
"""Pages of one block of the manager in the layout `manager_blocks`."""


def latent_rank(head_dim: int) -> int:
    """R of a latent of D = R + E elements: the largest power of two below D (512 of 576). A kernel knows only D."""
    return 1 << ((head_dim - 1).bit_length() - 1)


@dataclass(frozen=True, slots=True)
class Output:
    """One tensor that an op returns: its name, its shape in letters, and the site of its unwritten elements."""

    name: str
    shape: str
    site: str


@dataclass(frozen=True, slots=True)
class Op:
    """The signature and contract of one op."""

    name: str
    positional: tuple[str, ...]
    keywords: tuple[str, ...]
    outputs: tuple[Output, ...]
    summary: str
    optional: tuple[str, ...] = ()
    """Keywords that a kernel need not have. It is then called without them."""
    activations: tuple[str, ...] = ()
    """The positional arguments of the model's dtype. The first output has it too."""
    arguments: str = ""
    """The shapes and types of the arguments, and the types of the outputs, in words."""

    @property
    def signature(self) -> str:
        """The signature as in Python."""
        return f"{self.name}({', '.join(self.positional)}, *, {', '.join(self.keywords)})"


OPS: Registry[Op] = Registry(
    "op",
    (
        Op(
            "mla_decode",
            ("q", "kv_cache", "block_table", "seq_lens"),
            ("scale", "kv_scale", "metadata"),
            (Output("out", "B S H R", "output"), Output("lse", "B H S", "lse")),
            "absorbed MLA decode over a paged latent cache; causal over the last S positions; slots past "
            "seq_lens[b], unused pages and padded table entries influence no live row; R is the largest power of two "
            "below D, also given as `kv_lora_rank`; lse is a natural logarithm; with `window`, a query sees the last "
            "keys only",
            optional=("window", "workspace", "kv_lora_rank"),
            activations=("q",),
            arguments="q [B, S, H, D] and out: float32 with a float32 cache, else bfloat16, or the only type that "
            "`shapes` declares; kv_cache [N, P, D]; block_table [B, M] and seq_lens [B] int32; lse float32; "
            "kv_scale a float for fp8_e4m3, else None",
        ),
        Op(
            "mla_decode_sparse",
            ("q", "kv_cache", "indices"),
            ("scale", "kv_scale"),
            (Output("out", "T H R", "output"), Output("lse", "T H", "lse")),
            "absorbed MLA of each query token over the slots in `indices` [T, K] of a paged latent cache; a negative "
            "index stands for no slot and influences no row; lse is a natural logarithm",
            optional=("kv_lora_rank",),
            activations=("q",),
            arguments="q [T, H, D], kv_cache [N, P, D], types as in mla_decode; indices int32, a slot is page * P + "
            "place",
        ),
        Op(
            "mla_decode_plan",
            ("seq_lens",),
            ("num_heads",),
            (Output("metadata", "", "sched_meta"),),
            "split-KV schedule for mla_decode; graph-safe only if its address is stable or it is captured",
            arguments="seq_lens [B] int32; metadata is any object, and reaches mla_decode as it is",
            optional=("kv_itemsize",),
        ),
        Op(
            "context_attention",
            ("q", "k", "v", "query_start_loc", "chunk_start_loc"),
            ("scale",),
            (Output("out", "T H V", "context.output"), Output("lse", "H T", "context.lse")),
            "attention of new tokens over one chunk of cached context; writes only tokens that have context in it; "
            "lse is a natural logarithm",
            activations=("q", "k", "v"),
            arguments="q [T, H, E'], k [C, H, E'], v [C, H, V] and out: bfloat16; in the reference engine float32, "
            "unless `shapes` declares bfloat16 alone; lse float32; query_start_loc and chunk_start_loc [B + "
            "1] int32",
        ),
        Op(
            "merge_attn_states",
            ("prefix_out", "prefix_lse", "suffix_out", "suffix_lse"),
            ("num_tokens_with_context",),
            (Output("out", "T H V", "output"), Output("lse", "H T", "lse")),
            "merges two partial attentions; tokens at or past num_tokens_with_context are copied from the suffix; "
            "an lse of -inf or +inf marks an empty side; its output is not read; lse is a natural logarithm",
            activations=("prefix_out", "suffix_out"),
            arguments="outputs [T, H, V] as in context_attention; lse [H, T] float32; num_tokens_with_context an int, "
            "or None for all tokens",
        ),
        Op(
            "write_kv",
            ("kv_c", "k_pe", "kv_cache", "slot_mapping"),
            ("kv_scale",),
            (),
            "stores new latents in the paged cache; negative slots are skipped",
            activations=("kv_c", "k_pe"),
            arguments="kv_c [T, R] and k_pe [T, E] as q of mla_decode; kv_cache [N, P, D]; slot_mapping [T] int64; "
            "kv_scale a float for fp8_e4m3, else None",
        ),
        Op(
            "quantize_fp8",
            ("x",),
            ("num_live",),
            (Output("x8", "T K", "output"), Output("scale", "1", "output")),
            "per-tensor e4m3 quantization; the amax covers live rows only",
            arguments="x [T, K] bfloat16 (float32 in the reference engine); x8 float8_e4m3fn; scale float32; num_live "
            "an int, an int32 tensor [1], or None for all rows",
        ),
        Op(
            "route_experts",
            ("logits",),
            ("num_experts_per_tok",),
            (Output("ids", "T k", "router.ids"), Output("weights", "T k", "router.weights")),
            "softmax top-k routing; ids are int32 and distinct for each token; with `num_live`, only the first so many "
            "tokens are written",
            optional=("num_live",),
            arguments="logits [T, X] float32; ids int32; weights float32",
        ),
        Op(
            "quantize_blocks",
            ("x", "expert_offsets"),
            ("block_format",),
            (Output("values", "T C", "output"), Output("scales", "S G", "scale.blocks")),
            "codes with a scale for each block of a row (nvfp4, mxfp4, mxfp8), rows sorted by expert; rows past "
            "expert_offsets[-1] influence nothing, and scale rows that round an expert's up to tiles of 128 are code 0",
            arguments="x [T, K] bfloat16 (float32 in the reference engine); expert_offsets [X + 1] int32; values and "
            "scales uint8",
        ),
        Op(
            "write_records",
            ("x", "cache", "slot_mapping"),
            ("record_format", "scale"),
            (),
            "stores rows x [T, W] as records in the blocks of a byte cache [N, P, bytes of a record], which may be one "
            "layer's part of blocks of several layers; negative slots are skipped; see docs/record-formats.md",
        ),
        Op(
            "read_records",
            ("cache", "block_table", "cu_seq_lens"),
            ("record_format", "scale"),
            (Output("out", "T W", "output"),),
            "the records of each request, one request after another, as float32 rows; request b has the tokens "
            "cu_seq_lens[b] to cu_seq_lens[b + 1]; other slots influence no row",
        ),
    ),
)


def rank_problem(kv_lora_rank: int, rope_dim: int) -> Iterator[str]:
    """Kernels know only D = R + E, so R must follow from D."""
    if latent_rank(kv_lora_rank + rope_dim) != kv_lora_rank:
        yield (
            f"kv_lora_rank {kv_lora_rank} is not the largest power of two below kv_lora_rank + qk_rope_head_dim "
            f"({kv_lora_rank + rope_dim})"
        )


class KernelParams(Params):
    """Common to all ops: the kernel under test."""

    kernel: str = "torch"
    page_size: ClassVar[int] = PAGE_SIZE

    @property
    def dtype(self) -> str:
        """The type of queries, keys and latents: float32 beside a float32 cache, else bfloat16."""
        return "fp32" if getattr(self, "kv", None) == "fp32" else "bf16"


class MlaDecodeParams(KernelParams):
    """One call of `mla_decode`."""

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
        default="filled", description="entries of the table past a request's pages: as the poison fills them, or these"
    )
    planned: bool = Field(default=True, description="pass a plan made by the kernel's own mla_decode_plan")
    contiguous_q: bool = Field(default=True, description="false: q is a slice of a wider tensor")
    window: Count | None = Field(default=None, description="keys that a query sees at most, for kernels that can")
    page_stride: Annotated[int, Field(ge=0, le=2**32)] = Field(
        default=0, description="elements from page to page; 0: as the layout has them"
    )
    layout: CacheLayout = "contiguous"
    graph: Literal["none", "full"] = Field(
        default="none", description="full: the kernel is captured with the rows of the batch in another order"
    )
    launches: Annotated[int, Field(ge=1, le=1000)] = Field(default=1, description="launches on the same inputs")

    def gives(self) -> frozenset[str]:
        return super().gives() | ({"repeats"} if self.launches > 1 else set())

    def problems(self) -> Iterator[str]:
        if not self.seq_lens:
            yield "seq_lens is empty; give at least one length"
        if self.has_graph and len(set(self.seq_lens)) < 2:
            yield "a graph needs two different seq_lens, so that its inputs change"
        if any(0 < length < self.query_len for length in self.seq_lens):
            yield (
                f"seq_lens holds a length below query_len {self.query_len}; the query tokens are part of a request's "
                "length"
            )
        if self.page_stride and self.layout not in ("contiguous", "large"):
            yield f"layout {self.layout} has a page_stride of its own; leave it 0"
        yield from rank_problem(self.kv_lora_rank, self.qk_rope_head_dim)


class MlaDecodeSparseParams(KernelParams):
    """One call of `mla_decode_sparse`. Token i attends to `num_chosen[i]` slots, at most `topk`."""

    kernel: str = "gather"
    kv: KvType | Literal["fp8_ds_mla"] = "bf16"
    num_chosen: tuple[Length, ...] = (16, 0, 1, 5)
    topk: Count = 16
    num_blocks: Annotated[int, Field(ge=2, le=4096)] = 4
    num_heads: Count = 16
    kv_lora_rank: Count = 512
    qk_rope_head_dim: Count = 64
    layout: FlatLayout = "contiguous"

    def problems(self) -> Iterator[str]:
        if self.kv == "fp8_ds_mla" and (self.kv_lora_rank, self.qk_rope_head_dim) != (512, 64):
            yield "a record of fp8_ds_mla holds kv_lora_rank 512 and qk_rope_head_dim 64, no other sizes"


class ContextAttentionParams(KernelParams):
    """One call of `context_attention`: new tokens and context tokens of each request in this chunk."""

    query_lens: tuple[Length, ...] = (5, 3, 4)
    context_lens: tuple[Length, ...] = (70, 17, 0)
    num_heads: Count = 4
    qk_head_dim: Count = 192
    v_head_dim: Count = 128

    def problems(self) -> Iterator[str]:
        queries, contexts = self.query_lens, self.context_lens
        if len(queries) != len(contexts):
            yield f"query_lens has {len(queries)} requests and context_lens {len(contexts)}; give each one of both"
        if not queries or min(queries) < 1:
            yield "query_lens holds a request without new tokens"
        if not any(contexts):
            yield "context_lens has no token; give one request some context"


class MergeAttnStatesParams(KernelParams):
    """One call of `merge_attn_states`: the first `num_with_context` of `num_tokens` tokens have context."""

    LIMITS: ClassVar[dict[str, str]] = {
        "num_with_context": "num_tokens",
        "empty_prefix_rows": "num_with_context",
        "empty_suffix_rows": "num_with_context",
    }

    num_tokens: Count = 12
    num_with_context: Length = 7
    empty_prefix_rows: Length = Field(default=0, description="rows of the context part that the lse marks empty")
    empty_suffix_rows: Length = Field(default=0, description="how many of these rows have an empty suffix too")
    empty_lse: Literal["-inf", "+inf"] = "-inf"
    padded: Literal["none", "suffix", "both"] = Field(
        default="none",
        description="which sides are columns of a wider tensor: both in a first merge, the suffix alone in later ones",
    )
    num_heads: Count = 4
    v_head_dim: Count = 128


class WriteKvParams(KernelParams):
    """One call of `write_kv` for `num_tokens` tokens; the last `num_padded` of them have slot -1."""

    kv: KvType = "bf16"
    num_tokens: Count = 9
    num_padded: Length = 3
    kv_lora_rank: Count = 512
    qk_rope_head_dim: Count = 64
    layout: FlatLayout = "contiguous"

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
    width: Count = 256


class RouteExpertsParams(KernelParams):
    """One call of `route_experts`. Tokens from `num_live` on are padding."""

    LIMITS: ClassVar[dict[str, str]] = {"num_experts_per_tok": "num_experts", "num_live": "num_tokens"}

    num_tokens: Count = 12
    num_live: Count | None = Field(default=None, description="tokens that are live; all when left out")
    num_experts: Count = 16
    num_experts_per_tok: Count = 4

    def gives(self) -> frozenset[str]:
        return frozenset({"experts"})


class QuantizeBlocksParams(KernelParams):
    """One call of `quantize_blocks`: rows of `expert_rows` experts one after another, then rows of no expert."""

    block_format: Literal["nvfp4", "mxfp4", "mxfp8"] = "nvfp4"
    expert_rows: tuple[Length, ...] = (5,)
    orphan_rows: Length = Field(default=3, description="rows behind the rows of all experts, which belong to none")
    width: Count = 64

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
"""How a cache stores a token, as in :mod:`harness.kernels.ops.record_formats`, which needs torch."""


class RecordParams(KernelParams):
    """Common to `write_records` and `read_records`."""

    kv: RecordFormat = "bf16"
    layers: Annotated[int, Field(ge=1, le=8)] = Field(
        default=1, description="layers whose blocks lie side by side in one allocation; the cache is the last's part"
    )


class WriteRecordsParams(RecordParams):
    """One call of `write_records` for `num_tokens` tokens, and then `num_padded` tokens with slot -1."""

    num_tokens: Count = 9
    num_padded: Length = 3


class ReadRecordsParams(RecordParams):
    """One call of `read_records` for requests of these lengths."""

    seq_lens: tuple[Length, ...] = (5, 64, 65)

    def problems(self) -> Iterator[str]:
        if not any(self.seq_lens):
            yield "seq_lens has no live request; give one a length"


KERNEL_PARAMS: dict[str, type[KernelParams]] = {
    "mla_decode": MlaDecodeParams,
    "mla_decode_sparse": MlaDecodeSparseParams,
    "context_attention": ContextAttentionParams,
    "merge_attn_states": MergeAttnStatesParams,
    "write_kv": WriteKvParams,
    "quantize_fp8": QuantizeFp8Params,
    "route_experts": RouteExpertsParams,
    "quantize_blocks": QuantizeBlocksParams,
    "write_records": WriteRecordsParams,
    "read_records": ReadRecordsParams,
}
"""The parameters of a kernel case, by op. A planner is judged through its decode."""
