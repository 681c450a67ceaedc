"""Seeded inputs of each op. Live memory holds values. Memory without an owner holds zeros and is listed by site.

The caller poisons the entries of `unowned` in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from harness.core.errors import InputError
from harness.core.op_params import (
    ContextAttentionParams,
    MergeAttnStatesParams,
    MlaDecodeParams,
    MlaDecodeSparseParams,
    QuantizeBlocksParams,
    QuantizeFp8Params,
    RouteExpertsParams,
    WriteKvParams,
)
from harness.core.ops import PAGE_SIZE, latent_rank
from harness.core.shapes import CacheLayout
from harness.kernels.ops import cache_layouts, decode_conditions
from harness.kernels.ops.record_formats import cached_latents

NULL_BLOCK = 0
"""The block that belongs to no request: unused entries of block tables point to it."""


@dataclass(slots=True)
class Unowned:
    """Memory of an input without an owner: a view, and its site."""

    site: str
    memory: Tensor


@dataclass(slots=True)
class Inputs:
    """Arguments of an op by the names of its table row, and their memory without an owner."""

    unowned: list[Unowned] = field(default_factory=list, kw_only=True)


@dataclass(slots=True)
class CacheInputs(Inputs):
    """Arguments of an op with a paged cache."""

    kv_cache: Tensor = field(kw_only=True)
    layout: CacheLayout = field(kw_only=True)


@dataclass(slots=True)
class DecodeInputs(CacheInputs):
    """Arguments of `mla_decode`. Block 0 is the null block; the last block is the trap that padded entries may name."""

    q: Tensor
    block_table: Tensor
    seq_lens: Tensor
    scale: float
    kv_scale: float | None
    trap_block: int


@dataclass(slots=True)
class SparseInputs(CacheInputs):
    """Arguments of `mla_decode_sparse`. Block 0 is the null block; rows of `indices` end in -1."""

    q: Tensor
    indices: Tensor
    scale: float
    kv_scale: float | None


@dataclass(slots=True)
class ContextInputs(Inputs):
    """Arguments of `context_attention`."""

    q: Tensor
    k: Tensor
    v: Tensor
    query_start_loc: Tensor
    chunk_start_loc: Tensor
    scale: float


@dataclass(slots=True)
class MergeInputs(Inputs):
    """Arguments of `merge_attn_states`."""

    prefix_out: Tensor
    prefix_lse: Tensor
    suffix_out: Tensor
    suffix_lse: Tensor
    num_tokens_with_context: int


@dataclass(slots=True)
class WriteInputs(CacheInputs):
    """Arguments of `write_kv`; the last entries of `slot_mapping` are -1."""

    kv_c: Tensor
    k_pe: Tensor
    slot_mapping: Tensor
    kv_scale: float | None


@dataclass(slots=True)
class QuantizeInputs(Inputs):
    """Arguments of `quantize_fp8`."""

    x: Tensor
    num_live: int


@dataclass(slots=True)
class RouteInputs(Inputs):
    """Arguments of `route_experts`."""

    logits: Tensor
    num_experts_per_tok: int
    num_live: int


@dataclass(slots=True)
class BlockInputs(Inputs):
    """Arguments of `quantize_blocks`."""

    x: Tensor
    expert_offsets: Tensor
    block_format: str


def mla_decode(params: MlaDecodeParams, seed: int) -> DecodeInputs:
    """Requests with pages scattered over the pool in random order. Raises InputError for sizes that no cache has."""
    head_dim = _checked_head_dim(params.kv_lora_rank, params.qk_rope_head_dim)
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-length // PAGE_SIZE) for length in params.seq_lens]
    per_block = cache_layouts.pages_in_block(params.layout)
    *owned, free = cache_layouts.allotted(counts, params.num_spare_blocks, params.layout, generator)
    high = -(-params.high_blocks // per_block) * per_block
    # The null block is the first, the trap the last.
    num_blocks = high + sum(map(len, (*owned, free))) + 2 * per_block
    owned, free = [pages + high for pages in owned], free + high
    live = [pages[:count].tolist() for pages, count in zip(owned, counts, strict=True)]
    own = live
    if params.page_order:
        live = decode_conditions.arranged(live, params.page_order)
        left = set().union(*own).difference(*live)
        free = torch.cat((torch.tensor(sorted(left), dtype=torch.int32), free))
    kv_dtype, q_dtype = cache_layouts.KV_DTYPES[params.kv], _activation_dtype(params.kv)
    kv_scale = cache_layouts.KV_SCALE if params.kv == "fp8_e4m3" else None
    kv_cache = cache_layouts.empty_cache(num_blocks, head_dim, kv_dtype, params.layout, params.page_stride)
    table = torch.zeros(len(counts), max(map(len, owned)) + params.table_pad, dtype=torch.int32)
    unowned = [Unowned("kv.null", kv_cache[:per_block])]
    used = decode_conditions.slots_used(live, params.seq_lens)
    for b, (length, pages, rest) in enumerate(zip(params.seq_lens, live, owned, strict=True)):
        table[b, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
        table[b, len(pages) : len(rest)] = rest[len(pages) :]
        latents = torch.randn(len(pages) * PAGE_SIZE, head_dim, generator=generator)
        if params.values:
            word = params.values[b % len(params.values)]
            decode_conditions.plant_keys(b, word, latents, length, params.query_len, pages)
        stored = cached_latents(latents, kv_dtype, kv_scale).view(len(pages), PAGE_SIZE, head_dim)
        places = decode_conditions.written_places(pages, own[b])
        # As bytes, because older torch cannot index fp8.
        kv_cache.view(torch.uint8)[torch.tensor(pages).long()[places]] = stored.view(torch.uint8)[places]
        if length and used[pages[-1]] < PAGE_SIZE:
            unowned.append(Unowned("kv.tail", kv_cache[pages[-1], used[pages[-1]] :]))
        unowned.extend(Unowned("kv.tail", kv_cache[int(page)]) for page in rest[len(pages) :])
        unowned.append(Unowned("block_table.pad", table[b, len(rest) :]))
    unowned.extend(Unowned("kv.free", kv_cache[int(page)]) for page in free)
    unowned.append(Unowned("block_table.pad", kv_cache[-per_block:]))
    shape = (len(counts), params.query_len, params.num_heads, head_dim)
    q = _queries(shape, q_dtype, generator, contiguous=params.contiguous_q)
    if params.values:
        decode_conditions.plant_queries(params.values, q, head_dim**-0.5)
    return DecodeInputs(
        q=q,
        kv_cache=kv_cache,
        block_table=table,
        seq_lens=torch.tensor(params.seq_lens, dtype=torch.int32),
        scale=head_dim**-0.5,
        kv_scale=kv_scale,
        trap_block=num_blocks - 1,
        unowned=unowned + _beside(kv_cache, params.layout),
        layout=params.layout,
    )


def mla_decode_sparse(params: MlaDecodeSparseParams, seed: int) -> SparseInputs:
    """A pool of slots that are written if some token attends to them. Raises InputError for counts past `topk`."""
    head_dim = _checked_head_dim(params.kv_lora_rank, params.qk_rope_head_dim)
    num_slots = (params.num_blocks - 1) * PAGE_SIZE
    largest = max(params.num_chosen, default=0)
    if not params.num_chosen or largest > min(params.topk, num_slots):
        raise InputError(
            f"mla_decode_sparse: num_chosen={list(params.num_chosen)} with topk={params.topk} and {num_slots} slots; "
            "give one count for each token, none of them larger than either"
        )
    generator = torch.Generator().manual_seed(seed)
    kv_dtype, q_dtype = cache_layouts.KV_DTYPES[params.kv], _activation_dtype(params.kv)
    kv_scale = cache_layouts.KV_SCALE if params.kv == "fp8_e4m3" else None
    latents = torch.randn(params.num_blocks, PAGE_SIZE, head_dim, generator=generator)
    kv_cache = cache_layouts.laid_out(cached_latents(latents, kv_dtype, kv_scale), params.layout)
    indices = torch.full((len(params.num_chosen), params.topk), -1, dtype=torch.int32)
    for token, count in enumerate(params.num_chosen):
        slots = PAGE_SIZE + torch.randperm(num_slots, generator=generator)[:count]
        indices[token, :count] = slots.to(torch.int32)
    used = torch.zeros(params.num_blocks * PAGE_SIZE, dtype=torch.bool)
    used[indices[indices >= 0].long()] = True
    spare = (~used[PAGE_SIZE:]).nonzero().flatten() + PAGE_SIZE
    unowned = [Unowned("kv.null", kv_cache[NULL_BLOCK])]
    unowned += [Unowned("kv.free", kv_cache[int(slot) // PAGE_SIZE, int(slot) % PAGE_SIZE]) for slot in spare]
    return SparseInputs(
        q=_queries((len(params.num_chosen), params.num_heads, head_dim), q_dtype, generator, contiguous=True),
        kv_cache=kv_cache,
        indices=indices,
        scale=head_dim**-0.5,
        kv_scale=kv_scale,
        unowned=unowned + _beside(kv_cache, params.layout),
        layout=params.layout,
    )


def context_attention(params: ContextAttentionParams, seed: int) -> ContextInputs:
    """New tokens and context tokens of the requests, packed."""
    generator = torch.Generator().manual_seed(seed)
    num_tokens, num_keys = sum(params.query_lens), sum(params.context_lens)
    keys = (num_keys, params.num_heads)
    return ContextInputs(
        q=_randn((num_tokens, params.num_heads, params.qk_head_dim), torch.bfloat16, generator),
        k=_randn((*keys, params.qk_head_dim), torch.bfloat16, generator),
        v=_randn((*keys, params.v_head_dim), torch.bfloat16, generator),
        query_start_loc=_offsets(params.query_lens),
        chunk_start_loc=_offsets(params.context_lens),
        scale=params.qk_head_dim**-0.5,
    )


def merge_attn_states(params: MergeAttnStatesParams, seed: int) -> MergeInputs:
    """Two partial attentions. The last `empty_prefix_rows` rows with context have an empty prefix, the last
    `empty_suffix_rows` an empty suffix."""
    num_tokens, merged = params.num_tokens, params.num_with_context
    generator = torch.Generator().manual_seed(seed)
    out_shape, lse_shape = (num_tokens, params.num_heads, params.v_head_dim), (params.num_heads, num_tokens)
    pads: list[Unowned] = []
    prefix_out = _columns(_randn(out_shape, torch.bfloat16, generator), params.padded == "both", pads)
    prefix_lse = _randn(lse_shape, torch.float32, generator) * 2 + params.lse_gap * (-1) ** torch.arange(num_tokens)
    first_empty = merged - params.empty_prefix_rows
    prefix_lse[:, first_empty:merged] = float(params.empty_lse)
    suffix_out = _columns(_randn(out_shape, torch.bfloat16, generator), params.padded != "none", pads)
    suffix_lse = _randn(lse_shape, torch.float32, generator) * 2
    first_without_suffix = merged - params.empty_suffix_rows
    suffix_lse[:, first_without_suffix:merged] = float(params.empty_lse)
    return MergeInputs(
        prefix_out=prefix_out,
        prefix_lse=prefix_lse,
        suffix_out=suffix_out,
        suffix_lse=suffix_lse,
        num_tokens_with_context=merged,
        unowned=[
            *pads,
            Unowned("context.output", suffix_out[first_without_suffix:merged]),
            Unowned("context.output", prefix_out[first_empty:]),
            Unowned("context.lse", prefix_lse[:, merged:]),
        ],
    )


def write_kv(params: WriteKvParams, seed: int) -> WriteInputs:
    """Tokens for scattered slots of a cache full of other requests' latents; padded tokens come last."""
    generator = torch.Generator().manual_seed(seed)
    head_dim = _checked_head_dim(params.kv_lora_rank, params.qk_rope_head_dim)
    num_live = params.num_tokens - params.num_padded
    num_pages = 2 + -(-num_live // PAGE_SIZE)
    kv_dtype, dtype = cache_layouts.KV_DTYPES[params.kv], _activation_dtype(params.kv)
    kv_scale = cache_layouts.KV_SCALE if params.kv == "fp8_e4m3" else None
    others = torch.randn(1 + num_pages + 1, PAGE_SIZE, head_dim, generator=generator)
    kv_cache = cache_layouts.laid_out(cached_latents(others, kv_dtype, kv_scale), params.layout)
    slots = PAGE_SIZE + torch.randperm(num_pages * PAGE_SIZE, generator=generator)[:num_live]
    kv_c = _randn((params.num_tokens, params.kv_lora_rank), dtype, generator)
    k_pe = _randn((params.num_tokens, params.qk_rope_head_dim), dtype, generator)
    for latents in (kv_c, k_pe):
        latents[: params.large_rows] *= 2.0**14  # Nearly all are then past 448, the largest number of e4m3.
    return WriteInputs(
        kv_c=kv_c,
        k_pe=k_pe,
        kv_cache=kv_cache,
        slot_mapping=torch.cat((slots, torch.full((params.num_padded,), -1, dtype=torch.int64))),
        kv_scale=kv_scale,
        unowned=[
            Unowned("kv.null", kv_cache[NULL_BLOCK]),
            Unowned("kv.free", kv_cache[-1]),
            Unowned("graph.pad_rows", kv_c[num_live:]),
            Unowned("graph.pad_rows", k_pe[num_live:]),
            *_beside(kv_cache, params.layout),
        ],
        layout=params.layout,
    )


def quantize_fp8(params: QuantizeFp8Params, seed: int) -> QuantizeInputs:
    """Activations [T, K] bfloat16; rows past `num_live` are padding."""
    generator = torch.Generator().manual_seed(seed)
    x = _randn((params.num_tokens, params.width), torch.bfloat16, generator)
    x[: params.zero_rows] = 0.0
    return QuantizeInputs(x, params.num_live, unowned=[Unowned("scale.pad", x[params.num_live :])])


def route_experts(params: RouteExpertsParams, seed: int) -> RouteInputs:
    """Logits [T, X] float32 without ties, spread enough for weights to differ."""
    generator = torch.Generator().manual_seed(seed)
    num_live = params.num_tokens if params.num_live is None else params.num_live
    logits = _randn((params.num_tokens, params.num_experts), torch.float32, generator) * 2
    unowned = [Unowned("graph.pad_rows", logits[num_live:])]
    return RouteInputs(logits, params.num_experts_per_tok, num_live, unowned=unowned)


def quantize_blocks(params: QuantizeBlocksParams, seed: int) -> BlockInputs:
    """Rows [T, K] bfloat16 sorted by expert, then rows of no expert."""
    generator = torch.Generator().manual_seed(seed)
    num_live = sum(params.expert_rows)
    num_rows = num_live + params.orphan_rows
    # Rows differ much in size, so that the scale of another row shows.
    sizes = torch.exp2(torch.randint(-3, 4, (num_rows, 1), generator=generator).float())
    x = (sizes * torch.randn(num_rows, params.width, generator=generator)).to(torch.bfloat16)
    x[: params.zero_rows] = 0.0
    unowned = [Unowned("scale.pad", x[num_live:])]
    return BlockInputs(x, _offsets(params.expert_rows), params.block_format, unowned=unowned)


def _checked_head_dim(rank: int, rope_dim: int) -> int:
    """D of a latent of R and E elements. Raises InputError where a kernel could not derive R from D."""
    if latent_rank(rank + rope_dim) != rank:
        raise InputError(
            f"kv_lora_rank={rank}, qk_rope_head_dim={rope_dim}: kernels get only the sum, so the rank must be a "
            "power of two and the rope part at most as large"
        )
    return rank + rope_dim


def _beside(kv_cache: Tensor, layout: CacheLayout) -> list[Unowned]:
    return [Unowned("kv.neighbor", memory) for memory in cache_layouts.neighbors(kv_cache, layout).values()]


def _activation_dtype(kv: str) -> torch.dtype:
    """The type of activations beside a cache of type `kv`: an fp8 cache serves a bfloat16 model."""
    return torch.float32 if kv == "fp32" else torch.bfloat16


def _randn(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator).to(dtype)


def _columns(values: Tensor, is_padded: bool, pads: list[Unowned]) -> Tensor:
    """`values` [T, H, V]; with padding as the first columns of a wider tensor. Adds the other columns to `pads`."""
    if not is_padded:
        return values
    width = values.shape[-1]
    wide = values.new_zeros(*values.shape[:-1], width + width // 2)
    wide[..., :width] = values
    pads.append(Unowned("context.pad", wide[..., width:]))
    return wide[..., :width]


def _queries(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator, *, contiguous: bool) -> Tensor:
    """Queries of spread 2, so that softmax prefers some keys; unless contiguous, the columns of a wider tensor."""
    if contiguous:
        return 2 * _randn(shape, dtype, generator)
    return (2 * _randn((*shape[:-1], shape[-1] + 8), dtype, generator))[..., : shape[-1]]


def _offsets(lengths: tuple[int, ...]) -> Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).to(torch.int32)
