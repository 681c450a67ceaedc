"""Seeded inputs of `mla_decode`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.ops.mla_decode.params import MlaDecodeParams
from harness.ops.parts import cache_layouts, decode_conditions
from harness.ops.parts.inputs import (
    CacheInputs,
    Unowned,
    beside,
    checked_head_dim,
    drawn_queries,
    types_of,
)
from harness.ops.parts.record_formats import cached_latents


@dataclass(slots=True)
class MlaDecodeInputs(CacheInputs):
    """Arguments of `mla_decode`.

    Block 0 is the null block; the last block is the trap that padded entries may name.
    """

    q: Tensor
    block_table: Tensor
    seq_lens: Tensor
    scale: float
    kv_scale: float | None
    trap_block: int


def draw(params: MlaDecodeParams, seed: int) -> MlaDecodeInputs:
    """Requests with pages scattered over the pool in random order.

    Raises InputError for sizes that no cache has.
    """
    head_dim = checked_head_dim(params.kv_lora_rank, params.qk_rope_head_dim)
    generator = torch.Generator().manual_seed(seed)
    size = params.page_size
    counts = [-(-length // size) for length in params.seq_lens]
    per_block = cache_layouts.pages_in_block(params.layout)
    *owned, free = cache_layouts.allotted(counts, params.num_spare_blocks, params.layout, generator)
    # Whole blocks of the manager, so that the pages behind them still begin with one.
    high = -(-params.high_blocks // per_block) * per_block
    # The null block is the first, the trap the last.
    num_blocks = high + sum(map(len, (*owned, free))) + 2 * per_block
    owned = [pages + high for pages in owned]
    free = free + high
    live = [pages[:count].tolist() for pages, count in zip(owned, counts, strict=True)]
    own = live
    if params.page_order:
        live = decode_conditions.arranged(live, params.page_order)
        left = set().union(*own).difference(*live)
        free = torch.cat((torch.tensor(sorted(left), dtype=torch.int32), free))
    kv_dtype, q_dtype, kv_scale = types_of(params.kv)
    kv_cache = cache_layouts.empty_cache(
        num_blocks, head_dim, kv_dtype, params.layout, params.page_stride, size
    )
    table = torch.zeros(len(counts), max(map(len, owned)) + params.table_pad, dtype=torch.int32)
    unowned = [Unowned("kv.null", kv_cache[:per_block])]
    # A shared page has an owner as far as the longest of its requests reads it.
    used = decode_conditions.slots_used(live, params.seq_lens, size)
    for b, (length, pages, rest) in enumerate(zip(params.seq_lens, live, owned, strict=True)):
        table[b, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
        table[b, len(pages) : len(rest)] = rest[len(pages) :]
        latents = torch.randn(len(pages) * size, head_dim, generator=generator)
        if params.values:
            word = params.values[b % len(params.values)]
            decode_conditions.plant_keys(b, word, latents, length, params.query_len, pages, size)
        stored = cached_latents(latents, kv_dtype, kv_scale).view(len(pages), size, head_dim)
        # A shared page has the latents of the request that got it as its own.
        places = decode_conditions.written_places(pages, own[b])
        kv_cache[torch.tensor(pages).long()[places]] = stored[places]
        if length and used[pages[-1]] < size:
            unowned.append(Unowned("kv.tail", kv_cache[pages[-1], used[pages[-1]] :]))
        # The table names all pages of the last manager block, and the request has not reached these
        # yet.
        unowned.extend(Unowned("kv.tail", kv_cache[int(page)]) for page in rest[len(pages) :])
        unowned.append(Unowned("block_table.pad", table[b, len(rest) :]))
    unowned.extend(Unowned("kv.free", kv_cache[int(page)]) for page in free)
    unowned.append(Unowned("block_table.pad", kv_cache[-per_block:]))
    shape = (len(counts), params.query_len, params.num_heads, head_dim)
    q = drawn_queries(shape, q_dtype, generator, contiguous=params.contiguous_q)
    if params.values:
        decode_conditions.plant_queries(params.values, q, head_dim**-0.5)
    return MlaDecodeInputs(
        q=q,
        kv_cache=kv_cache,
        block_table=table,
        seq_lens=torch.tensor(params.seq_lens, dtype=torch.int32),
        scale=head_dim**-0.5,
        kv_scale=kv_scale,
        trap_block=num_blocks - 1,
        unowned=unowned + beside(kv_cache, params.layout),
        layout=params.layout,
    )
