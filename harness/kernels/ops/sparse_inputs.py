"""Seeded inputs of `mla_decode_sparse`: tokens that attend to slots scattered over a pool, some to none."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from harness.core.errors import InputError
from harness.core.ops import PAGE_SIZE
from harness.core.params import MlaDecodeSparseParams
from harness.kernels.ops.inputs import (
    KV_DTYPES,
    KV_SCALE,
    NULL_BLOCK,
    Unowned,
    activation_dtype,
    checked_head_dim,
    queries,
    rounded_latents,
)


@dataclass(slots=True)
class SparseInputs:
    """Arguments of `mla_decode_sparse`. Block 0 is the null block; rows of `indices` end in -1."""

    q: Tensor
    kv_cache: Tensor
    indices: Tensor
    scale: float
    kv_scale: float | None
    unowned: list[Unowned] = field(default_factory=list)


def mla_decode_sparse(params: MlaDecodeSparseParams, seed: int) -> SparseInputs:
    """A pool whose slots are written where some token attends to them. Raises InputError for counts past `topk`."""
    head_dim = checked_head_dim(params.kv_lora_rank, params.qk_rope_head_dim)
    num_slots = (params.num_blocks - 1) * PAGE_SIZE
    largest = max(params.num_chosen, default=0)
    if not params.num_chosen or largest > min(params.topk, num_slots):
        raise InputError(
            f"mla_decode_sparse: num_chosen={list(params.num_chosen)} with topk={params.topk} and {num_slots} slots; "
            "give one count for each token, none of them larger than either"
        )
    generator = torch.Generator().manual_seed(seed)
    kv_dtype, q_dtype = KV_DTYPES[params.kv], activation_dtype(params.kv)
    kv_scale = KV_SCALE if params.kv == "fp8_e4m3" else None
    latents = torch.randn(params.num_blocks, PAGE_SIZE, head_dim, generator=generator)
    kv_cache = rounded_latents(latents, kv_dtype, kv_scale)
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
        q=queries((len(params.num_chosen), params.num_heads, head_dim), q_dtype, generator, contiguous=True),
        kv_cache=kv_cache,
        indices=indices,
        scale=head_dim**-0.5,
        kv_scale=kv_scale,
        unowned=unowned,
    )
