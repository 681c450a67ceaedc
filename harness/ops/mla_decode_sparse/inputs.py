"""Seeded inputs of `mla_decode_sparse`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from harness.core.errors import InputError
from harness.core.ops import PAGE_SIZE
from harness.ops.mla_decode_sparse.params import MlaDecodeSparseParams
from harness.ops.parts import cache_layouts, decode_conditions
from harness.ops.parts.inputs import (
    NULL_BLOCK,
    CacheInputs,
    Unowned,
    beside,
    checked_head_dim,
    drawn_queries,
    types_of,
)
from harness.ops.parts.record_formats import cached_latents


@dataclass(slots=True)
class SparseInputs(CacheInputs):
    """Arguments of `mla_decode_sparse`. Block 0 is the null block; rows of `indices` end in -1."""

    q: Tensor
    indices: Tensor
    scale: float
    kv_scale: float | None


def draw(params: MlaDecodeSparseParams, seed: int) -> SparseInputs:
    """A pool of slots that are written if some token attends to them.

    Raises InputError for counts past `topk`.
    """
    head_dim = checked_head_dim(params.kv_lora_rank, params.qk_rope_head_dim)
    num_slots = (params.num_blocks - 1) * PAGE_SIZE
    largest = max(params.num_chosen, default=0)
    if not params.num_chosen or largest > min(params.topk, num_slots):
        raise InputError(
            f"mla_decode_sparse: num_chosen={list(params.num_chosen)} with topk={params.topk} and"
            f" {num_slots} slots; give one count for each token, none of them larger than either"
        )
    generator = torch.Generator().manual_seed(seed)
    kv_dtype, q_dtype, kv_scale = types_of(params.kv)
    latents = torch.randn(params.num_blocks, PAGE_SIZE, head_dim, generator=generator)
    indices = torch.full((len(params.num_chosen), params.topk), -1, dtype=torch.int32)
    before = torch.empty(0, dtype=torch.int32)
    for token, count in enumerate(params.num_chosen):
        # Behind the null block, whose slots no token may choose.
        slots = (PAGE_SIZE + torch.randperm(num_slots, generator=generator)[:count]).to(torch.int32)
        word = params.slot_order[token % len(params.slot_order)] if params.slot_order else "random"
        before = slots = decode_conditions.arranged_slots(slots, before, word)
        indices[token, :count] = slots
        if word == "holes" and count:
            # The last slot goes to the end of the list, so that -1 stands between slots.
            indices[token, [count - 1, -1]] = indices[token, [-1, count - 1]]
    if params.values:
        # Planted queries look at element 0 alone, so a key without a level scores 0.
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
        # One view for slots that lie one behind the other, as a large pool has many.
        bounds = [i for i, slot in enumerate(free) if not i or slot != free[i - 1] + 1]
        runs = [free[a:b] for a, b in pairwise([*bounds, len(free)])]
        unowned += [Unowned("kv.free", kv_cache[page, run[0] : run[-1] + 1]) for run in runs]
    q = drawn_queries(
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
        unowned=unowned + beside(kv_cache, params.layout),
        layout=params.layout,
    )
