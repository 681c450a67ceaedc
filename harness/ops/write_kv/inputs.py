"""Seeded inputs of `write_kv`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.core.ops import PAGE_SIZE
from harness.ops.parts import cache_layouts, row_conditions
from harness.ops.parts.inputs import (
    NULL_BLOCK,
    CacheInputs,
    Unowned,
    beside,
    checked_head_dim,
    padding,
    randn,
    types_of,
)
from harness.ops.parts.record_formats import cached_latents
from harness.ops.write_kv.params import WriteKvParams


@dataclass(slots=True)
class WriteInputs(CacheInputs):
    """Arguments of `write_kv`; the last entries of `slot_mapping` are -1."""

    kv_c: Tensor
    k_pe: Tensor
    slot_mapping: Tensor
    kv_scale: float | None


def draw(params: WriteKvParams, seed: int) -> WriteInputs:
    """Tokens for scattered slots of a cache full of other requests' latents; padded tokens come
    last.
    """
    generator = torch.Generator().manual_seed(seed)
    head_dim = checked_head_dim(params.kv_lora_rank, params.qk_rope_head_dim)
    num_live = params.num_tokens - params.num_padded
    # More than the tokens fill, so that latents of others lie between theirs and can be hit.
    num_pages = 2 + -(-num_live // PAGE_SIZE)
    first_page = 1 + params.high_blocks
    kv_dtype, dtype, kv_scale = types_of(params.kv)
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
            *beside(kv_cache, params.layout),
        ],
        layout=params.layout,
    )
