"""Seeded inputs of each op.

Live memory holds values. Memory without an owner holds zeros and is listed by site.

The caller poisons the entries of `unowned` in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from harness.core.errors import InputError
from harness.core.op_params import (
    ContextAttentionParams,
    MergeAttnStatesParams,
    MlaDecodeParams,
    MlaDecodeSparseParams,
    QuantizeFp8Params,
    WriteKvParams,
)
from harness.core.ops import PAGE_SIZE, latent_rank
from harness.core.shapes import CacheLayout
from harness.kernels.ops import cache_layouts, decode_conditions, row_conditions
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
    """Arguments of `mla_decode`.

    Block 0 is the null block; the last block is the trap that padded entries may name.
    """

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


def mla_decode(params: MlaDecodeParams, seed: int) -> DecodeInputs:
    """Requests with pages scattered over the pool in random order.

    Raises InputError for sizes that no cache has.
    """
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
    kv_dtype, q_dtype, kv_scale = _types_of(params.kv)
    kv_cache = cache_layouts.empty_cache(
        num_blocks, head_dim, kv_dtype, params.layout, params.page_stride
    )
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
        kv_cache[torch.tensor(pages).long()[places]] = stored[places]
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
    """A pool of slots that are written if some token attends to them.

    Raises InputError for counts past `topk`.
    """
    head_dim = _checked_head_dim(params.kv_lora_rank, params.qk_rope_head_dim)
    num_slots = (params.num_blocks - 1) * PAGE_SIZE
    largest = max(params.num_chosen, default=0)
    if not params.num_chosen or largest > min(params.topk, num_slots):
        raise InputError(
            f"mla_decode_sparse: num_chosen={list(params.num_chosen)} with topk={params.topk} and"
            f" {num_slots} slots; give one count for each token, none of them larger than either"
        )
    generator = torch.Generator().manual_seed(seed)
    kv_dtype, q_dtype, kv_scale = _types_of(params.kv)
    latents = torch.randn(params.num_blocks, PAGE_SIZE, head_dim, generator=generator)
    indices = torch.full((len(params.num_chosen), params.topk), -1, dtype=torch.int32)
    before = torch.empty(0, dtype=torch.int32)
    for token, count in enumerate(params.num_chosen):
        slots = (PAGE_SIZE + torch.randperm(num_slots, generator=generator)[:count]).to(torch.int32)
        word = params.slot_order[token % len(params.slot_order)] if params.slot_order else "random"
        before = slots = decode_conditions.arranged_slots(slots, before, word)
        indices[token, :count] = slots
        if word == "holes" and count:
            indices[token, [count - 1, -1]] = indices[token, [-1, count - 1]]
    if params.values:
        latents[..., 0] = 0.0
        for token, slots in enumerate(indices):
            kind = params.values[token % len(params.values)]
            decode_conditions.plant_in(
                token, kind, latents.view(-1, head_dim), slots[slots >= 0].tolist()
            )
    kv_cache = cache_layouts.laid_out(cached_latents(latents, kv_dtype, kv_scale), params.layout)
    used = torch.zeros(params.num_blocks * PAGE_SIZE, dtype=torch.bool)
    used[indices[indices >= 0].long()] = True
    unowned = [Unowned("kv.null", kv_cache[NULL_BLOCK])]
    for page, slots in enumerate(used.view(-1, PAGE_SIZE)[1:], 1):
        free = (~slots).nonzero().flatten().tolist()
        views = (
            [kv_cache[page]] if len(free) == PAGE_SIZE else [kv_cache[page, slot] for slot in free]
        )
        unowned += [Unowned("kv.free", view) for view in views]
    q = _queries(
        (len(params.num_chosen), params.num_heads, head_dim), q_dtype, generator, contiguous=True
    )
    if params.values:
        decode_conditions.plant_queries(params.values, q, head_dim**-0.5)
    return SparseInputs(
        q=q,
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
    q = randn((num_tokens, params.num_heads, params.qk_head_dim), torch.bfloat16, generator)
    k = randn((*keys, params.qk_head_dim), torch.bfloat16, generator)
    if params.values:
        k[..., 0], ends = 0.0, list(accumulate(params.context_lens))
        for b, (end, length) in enumerate(zip(ends, params.context_lens, strict=True)):
            decode_conditions.plant_in(
                b, params.values[b % len(params.values)], k, range(end - length, end)
            )
        owners = [b for b, count in enumerate(params.query_lens) for _ in range(count)]
        decode_conditions.plant_queries(params.values, q, params.qk_head_dim**-0.5, owners)
    return ContextInputs(
        q=q,
        k=k,
        v=randn((*keys, params.v_head_dim), torch.bfloat16, generator),
        query_start_loc=offsets(params.query_lens),
        chunk_start_loc=offsets(params.context_lens),
        scale=params.qk_head_dim**-0.5,
    )


def merge_attn_states(params: MergeAttnStatesParams, seed: int) -> MergeInputs:
    """Two partial attentions.

    The last `empty_prefix_rows` rows with context have an empty prefix, the last
    `empty_suffix_rows` an empty suffix.
    """
    num_tokens, merged = params.num_tokens, params.num_with_context
    generator = torch.Generator().manual_seed(seed)
    out_shape, lse_shape = (
        (num_tokens, params.num_heads, params.v_head_dim),
        (params.num_heads, num_tokens),
    )
    pads: list[Unowned] = []
    prefix_out = _columns(
        randn(out_shape, torch.bfloat16, generator), params.padded == "both", pads
    )
    prefix_lse = randn(lse_shape, torch.float32, generator) * 2 + params.lse_gap * (
        -1
    ) ** torch.arange(num_tokens)
    first_empty = merged - params.empty_prefix_rows
    prefix_lse[:, first_empty:merged] = float(params.empty_lse)
    suffix_out = _columns(
        randn(out_shape, torch.bfloat16, generator), params.padded != "none", pads
    )
    suffix_lse = randn(lse_shape, torch.float32, generator) * 2
    first_without_suffix = merged - params.empty_suffix_rows
    suffix_lse[:, first_without_suffix:merged] = float(params.empty_lse)
    for t in range(merged if params.sides else 0):
        word = params.sides[t % len(params.sides)]
        for name, lse, out in (
            ("prefix", prefix_lse, prefix_out),
            ("suffix", suffix_lse, suffix_out),
        ):
            if word == f"{name}_above":
                lse[:, t] += 200.0
            elif word in (f"no_{name}", "neither"):
                lse[:, t] = float(params.empty_lse)
                pads.append(Unowned("context.output", out[t]))
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
    """Tokens for scattered slots of a cache full of other requests' latents; padded tokens come
    last.
    """
    generator = torch.Generator().manual_seed(seed)
    head_dim = _checked_head_dim(params.kv_lora_rank, params.qk_rope_head_dim)
    num_live = params.num_tokens - params.num_padded
    num_pages = 2 + -(-num_live // PAGE_SIZE)
    first_page = 1 + params.high_blocks
    kv_dtype, dtype, kv_scale = _types_of(params.kv)
    others = torch.randn(first_page + num_pages + 1, PAGE_SIZE, head_dim, generator=generator)
    kv_cache = cache_layouts.laid_out(cached_latents(others, kv_dtype, kv_scale), params.layout)
    slots = row_conditions.ordered_slots(num_live, num_pages, params.slot_order, generator)
    is_padded = row_conditions.padded_rows(params.num_tokens, params.num_padded, params.padded_at)
    widths = (params.kv_lora_rank, params.qk_rope_head_dim)
    if params.contiguous:
        kv_c, k_pe = (randn((params.num_tokens, width), dtype, generator) for width in widths)
    else:
        kv_c, k_pe = randn((params.num_tokens, sum(widths)), dtype, generator).split_with_sizes(
            widths, dim=1
        )
    for latents in (kv_c, k_pe):
        latents[: params.large_rows] *= (
            2.0**14
        )  # Nearly all are then past 448, the largest number of e4m3.
        row_conditions.resize_rows(latents, params.values)
    return WriteInputs(
        kv_c=kv_c,
        k_pe=k_pe,
        kv_cache=kv_cache,
        slot_mapping=row_conditions.slot_mapping(first_page * PAGE_SIZE + slots, is_padded),
        kv_scale=kv_scale,
        unowned=[
            Unowned("kv.null", kv_cache[NULL_BLOCK]),
            Unowned("kv.free", kv_cache[-1]),
            *(
                Unowned("graph.pad_rows", part)
                for x in (kv_c, k_pe)
                for part in padding(x, is_padded)
            ),
            *_beside(kv_cache, params.layout),
        ],
        layout=params.layout,
    )


def padding(x: Tensor, is_padded: Tensor) -> list[Tensor]:
    """Views of the rows of x [T, ...] that are padding, by is_padded [T] bool: one of all, if these
    are the last.
    """
    rows = is_padded.nonzero().flatten().tolist()
    first_at_end = len(x) - len(rows)
    return [x[first_at_end:]] if not rows or rows[0] == first_at_end else [x[row] for row in rows]


def quantize_fp8(params: QuantizeFp8Params, seed: int) -> QuantizeInputs:
    """Activations [T, K] bfloat16; rows past `num_live` are padding."""
    generator = torch.Generator().manual_seed(seed)
    x = randn((params.num_tokens, params.width), torch.bfloat16, generator)
    x[: params.zero_rows] = 0.0
    row_conditions.resize_rows(x, params.values)
    row_conditions.move_peaks(x, params.peaks)
    return QuantizeInputs(x, params.num_live, unowned=[Unowned("scale.pad", x[params.num_live :])])


def _checked_head_dim(rank: int, rope_dim: int) -> int:
    """D of a latent of R and E elements.

    Raises InputError where a kernel could not derive R from D.
    """
    if latent_rank(rank + rope_dim) != rank:
        raise InputError(
            f"kv_lora_rank={rank}, qk_rope_head_dim={rope_dim}: kernels get only the sum, so the"
            " rank must be a power of two and the rope part at most as large"
        )
    return rank + rope_dim


def _beside(kv_cache: Tensor, layout: CacheLayout) -> list[Unowned]:
    return [
        Unowned("kv.neighbor", memory)
        for memory in cache_layouts.neighbors(kv_cache, layout).values()
    ]


def _types_of(kv: str) -> tuple[torch.dtype, torch.dtype, float | None]:
    """The types of a cache and of activations, and the cache's scale: an fp8 cache serves a
    bfloat16 model.
    """
    activations = torch.float32 if kv == "fp32" else torch.bfloat16
    return (
        cache_layouts.KV_DTYPES[kv],
        activations,
        cache_layouts.KV_SCALE if kv == "fp8_e4m3" else None,
    )


def randn(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Normal numbers of a shape and type, rounded from float32."""
    return torch.randn(shape, generator=generator).to(dtype)


def _columns(values: Tensor, is_padded: bool, pads: list[Unowned]) -> Tensor:
    """`values` [T, H, V]; with padding as the first columns of a wider tensor.

    Adds the other columns to `pads`.
    """
    if not is_padded:
        return values
    width = values.shape[-1]
    wide = values.new_zeros(*values.shape[:-1], width + width // 2)
    wide[..., :width] = values
    pads.append(Unowned("context.pad", wide[..., width:]))
    return wide[..., :width]


def _queries(
    shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator, *, contiguous: bool
) -> Tensor:
    """Queries of spread 2, so that softmax prefers some keys; unless contiguous, the columns of a
    wider tensor.
    """
    if contiguous:
        return 2 * randn(shape, dtype, generator)
    return (2 * randn((*shape[:-1], shape[-1] + 8), dtype, generator))[..., : shape[-1]]


def offsets(lengths: tuple[int, ...]) -> Tensor:
    """[n + 1] int32: where each of n units begins, and the end."""
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).to(torch.int32)
