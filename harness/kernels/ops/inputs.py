"""Seeded inputs of each op. Live memory holds values; memory that nobody wrote is left as zeros and listed by site.

The caller poisons what `unowned` lists, in order: views of the inputs with the site each belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from harness.core.errors import InputError
from harness.core.ops import PAGE_SIZE, latent_rank
from harness.core.params import (
    ContextAttentionParams,
    MergeAttnStatesParams,
    MlaDecodeParams,
    QuantizeFp8Params,
    RouteExpertsParams,
    WriteKvParams,
)
from harness.kernels.ops.large_cache import empty_cache

NULL_BLOCK = 0
"""The block that belongs to no request: unused entries of block tables point to it."""

KV_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp8_e4m3": torch.float8_e4m3fn}
KV_SCALE = 0.0117
"""The per-tensor scale of fp8 caches here: latents of unit variance then use the range of e4m3 without saturating.

No power of two, so that an op that leaves it out or applies it twice in a rounding step cannot be right by luck.
"""
E4M3_MAX = 448.0


@dataclass(slots=True)
class Unowned:
    """Memory of an input that nobody wrote: a view, and its site."""

    site: str
    memory: Tensor


@dataclass(slots=True)
class DecodeInputs:
    """Arguments of `mla_decode`. Block 0 is the null block; the last block is the trap that padded entries may name."""

    q: Tensor
    kv_cache: Tensor
    block_table: Tensor
    seq_lens: Tensor
    scale: float
    kv_scale: float | None
    trap_block: int
    unowned: list[Unowned] = field(default_factory=list)


@dataclass(slots=True)
class ContextInputs:
    """Arguments of `context_attention`."""

    q: Tensor
    k: Tensor
    v: Tensor
    query_start_loc: Tensor
    chunk_start_loc: Tensor
    scale: float


@dataclass(slots=True)
class MergeInputs:
    """Arguments of `merge_attn_states`."""

    prefix_out: Tensor
    prefix_lse: Tensor
    suffix_out: Tensor
    suffix_lse: Tensor
    num_tokens_with_context: int
    unowned: list[Unowned] = field(default_factory=list)


@dataclass(slots=True)
class WriteInputs:
    """Arguments of `write_kv`; the last entries of `slot_mapping` are -1."""

    kv_c: Tensor
    k_pe: Tensor
    kv_cache: Tensor
    slot_mapping: Tensor
    kv_scale: float | None
    unowned: list[Unowned] = field(default_factory=list)


@dataclass(slots=True)
class QuantizeInputs:
    """Arguments of `quantize_fp8`."""

    x: Tensor
    num_live: int
    unowned: list[Unowned] = field(default_factory=list)


@dataclass(slots=True)
class RouteInputs:
    """Arguments of `route_experts`."""

    logits: Tensor
    num_experts_per_tok: int
    num_live: int
    unowned: list[Unowned] = field(default_factory=list)


def mla_decode(params: MlaDecodeParams, seed: int) -> DecodeInputs:
    """Requests whose pages are scattered over the pool in random order. Raises InputError for sizes no cache has."""
    head_dim = checked_head_dim(params.kv_lora_rank, params.qk_rope_head_dim)
    if not params.seq_lens:
        raise InputError("mla_decode: seq_lens is empty; give at least one length")
    generator = torch.Generator().manual_seed(seed)
    pages = [-(-length // PAGE_SIZE) for length in params.seq_lens]
    num_owned = sum(pages)
    num_blocks = 1 + num_owned + params.num_spare_blocks + 1
    trap = num_blocks - 1
    order = (1 + torch.randperm(num_owned + params.num_spare_blocks, generator=generator)).to(torch.int32)
    kv_dtype, q_dtype = KV_DTYPES[params.kv], activation_dtype(params.kv)
    kv_scale = KV_SCALE if params.kv == "fp8_e4m3" else None
    kv_cache = empty_cache(num_blocks, head_dim, kv_dtype, params.page_stride)
    table = torch.zeros(len(pages), max(pages) + params.table_pad, dtype=torch.int32)
    unowned = [Unowned("kv.null", kv_cache[NULL_BLOCK])]
    used = 0
    for b, (length, count) in enumerate(zip(params.seq_lens, pages, strict=True)):
        blocks = order[used : used + count]
        used += count
        table[b, :count] = blocks
        latents = torch.randn(count * PAGE_SIZE, head_dim, generator=generator)
        stored = rounded_latents(latents, kv_dtype, kv_scale).view(count, PAGE_SIZE, head_dim)
        # As bytes, because older torch cannot index fp8.
        kv_cache.view(torch.uint8)[blocks.long()] = stored.view(torch.uint8)
        if length % PAGE_SIZE:
            unowned.append(Unowned("kv.tail", kv_cache[int(blocks[-1]), length % PAGE_SIZE :]))
        unowned.append(Unowned("block_table.pad", table[b, count:]))
    unowned.extend(Unowned("kv.free", kv_cache[int(block)]) for block in order[used:])
    unowned.append(Unowned("block_table.pad", kv_cache[trap]))
    shape = (len(pages), params.query_len, params.num_heads, head_dim)
    return DecodeInputs(
        q=queries(shape, q_dtype, generator, contiguous=params.contiguous_q),
        kv_cache=kv_cache,
        block_table=table,
        seq_lens=torch.tensor(params.seq_lens, dtype=torch.int32),
        scale=head_dim**-0.5,
        kv_scale=kv_scale,
        trap_block=trap,
        unowned=unowned,
    )


def context_attention(params: ContextAttentionParams, seed: int) -> ContextInputs:
    """New tokens and context tokens of each request, packed one after the other. Raises InputError for odd lengths."""
    if len(params.query_lens) != len(params.context_lens):
        raise InputError(
            f"context_attention: {len(params.query_lens)} query_lens and {len(params.context_lens)} context_lens; "
            "give one of each for a request"
        )
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
    """Two partial attentions; the last `empty_prefix_rows` of the rows with context have an empty prefix, and the last
    `empty_suffix_rows` of them an empty suffix."""
    num_tokens, merged = params.num_tokens, params.num_with_context
    if not params.empty_prefix_rows <= merged <= num_tokens:
        raise InputError(
            f"merge_attn_states: empty_prefix_rows={params.empty_prefix_rows}, num_with_context={merged}, "
            f"num_tokens={num_tokens}; each must be at most the next"
        )
    if params.empty_suffix_rows > merged:
        raise InputError(
            f"merge_attn_states: empty_suffix_rows={params.empty_suffix_rows} of num_with_context={merged}; at most all"
        )
    generator = torch.Generator().manual_seed(seed)
    out_shape, lse_shape = (num_tokens, params.num_heads, params.v_head_dim), (params.num_heads, num_tokens)
    pads: list[Unowned] = []
    prefix_out = _columns(_randn(out_shape, torch.bfloat16, generator), params.padded == "both", pads)
    prefix_lse = _randn(lse_shape, torch.float32, generator) * 2
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
    """Tokens for scattered slots of a cache that is full of other requests' latents; padded tokens come last."""
    if params.num_padded > params.num_tokens:
        raise InputError(
            f"write_kv: num_padded={params.num_padded} of num_tokens={params.num_tokens}; pad at most all of them"
        )
    generator = torch.Generator().manual_seed(seed)
    head_dim = checked_head_dim(params.kv_lora_rank, params.qk_rope_head_dim)
    num_live = params.num_tokens - params.num_padded
    num_pages = 2 + -(-num_live // PAGE_SIZE)
    kv_dtype, dtype = KV_DTYPES[params.kv], activation_dtype(params.kv)
    kv_scale = KV_SCALE if params.kv == "fp8_e4m3" else None
    others = torch.randn(1 + num_pages + 1, PAGE_SIZE, head_dim, generator=generator)
    kv_cache = rounded_latents(others, kv_dtype, kv_scale)
    slots = PAGE_SIZE + torch.randperm(num_pages * PAGE_SIZE, generator=generator)[:num_live]
    kv_c = _randn((params.num_tokens, params.kv_lora_rank), dtype, generator)
    k_pe = _randn((params.num_tokens, params.qk_rope_head_dim), dtype, generator)
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
        ],
    )


def quantize_fp8(params: QuantizeFp8Params, seed: int) -> QuantizeInputs:
    """Activations whose rows past `num_live` are padding."""
    if not 1 <= params.num_live <= params.num_tokens:
        raise InputError(
            f"quantize_fp8: num_live={params.num_live} of num_tokens={params.num_tokens}; at least one and at most all"
        )
    generator = torch.Generator().manual_seed(seed)
    x = _randn((params.num_tokens, params.width), torch.bfloat16, generator)
    return QuantizeInputs(x, params.num_live, [Unowned("scale.pad", x[params.num_live :])])


def route_experts(params: RouteExpertsParams, seed: int) -> RouteInputs:
    """Float32 logits without ties, spread enough for weights to differ."""
    if params.num_experts_per_tok > params.num_experts:
        raise InputError(
            f"route_experts: num_experts_per_tok={params.num_experts_per_tok} of num_experts={params.num_experts}; "
            "choose at most all of them"
        )
    generator = torch.Generator().manual_seed(seed)
    num_live = params.num_tokens if params.num_live is None else params.num_live
    if num_live > params.num_tokens:
        raise InputError(f"route_experts: num_live={num_live} of num_tokens={params.num_tokens}; at most all of them")
    logits = _randn((params.num_tokens, params.num_experts), torch.float32, generator) * 2
    return RouteInputs(logits, params.num_experts_per_tok, num_live, [Unowned("graph.pad_rows", logits[num_live:])])


def checked_head_dim(rank: int, rope_dim: int) -> int:
    """D of a latent of R and E elements. Raises InputError where a kernel could not tell R from D."""
    if latent_rank(rank + rope_dim) != rank:
        raise InputError(
            f"kv_lora_rank={rank}, qk_rope_head_dim={rope_dim}: kernels are told only the sum, so the rank must be a "
            "power of two and the rope part at most as large"
        )
    return rank + rope_dim


def activation_dtype(kv: str) -> torch.dtype:
    """The type of what meets a cache of type `kv`: an fp8 cache serves a bfloat16 model."""
    return torch.float32 if kv == "fp32" else torch.bfloat16


def _randn(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator).to(dtype)


def _columns(values: Tensor, is_padded: bool, pads: list[Unowned]) -> Tensor:
    """`values` [T, H, V], or the same as the first columns of a tensor half as wide again, whose rest nobody writes."""
    if not is_padded:
        return values
    width = values.shape[-1]
    wide = values.new_zeros(*values.shape[:-1], width + width // 2)
    wide[..., :width] = values
    pads.append(Unowned("context.pad", wide[..., width:]))
    return wide[..., :width]


def queries(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator, *, contiguous: bool) -> Tensor:
    """Queries of spread 2, so that softmax prefers some keys; not contiguous: columns of a wider tensor."""
    if contiguous:
        return 2 * _randn(shape, dtype, generator)
    return (2 * _randn((*shape[:-1], shape[-1] + 8), dtype, generator))[..., : shape[-1]]


def _offsets(lengths: tuple[int, ...]) -> Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).to(torch.int32)


def rounded_latents(latents: Tensor, dtype: torch.dtype, kv_scale: float | None) -> Tensor:
    """Latents as a cache of `dtype` holds them: fp8 is divided by `kv_scale` and saturated."""
    if kv_scale is None:
        return latents.to(dtype)
    return (latents / kv_scale).clamp(-E4M3_MAX, E4M3_MAX).to(dtype)
