"""Seeded inputs of `context_attention`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from harness.ops.context_attention.params import ContextAttentionParams
from harness.ops.parts import decode_conditions
from harness.ops.parts.inputs import OpInputs, offsets, randn


@dataclass(slots=True)
class ContextInputs(OpInputs):
    """Arguments of `context_attention`."""

    q: Tensor
    k: Tensor
    v: Tensor
    query_start_loc: Tensor
    chunk_start_loc: Tensor
    scale: float


def draw(params: ContextAttentionParams, seed: int) -> ContextInputs:
    """New tokens and context tokens of the requests, packed."""
    generator = torch.Generator().manual_seed(seed)
    num_tokens = sum(params.query_lens)
    num_keys = sum(params.context_lens)
    keys = (num_keys, params.num_heads)
    q = randn((num_tokens, params.num_heads, params.qk_head_dim), torch.bfloat16, generator)
    k = randn((*keys, params.qk_head_dim), torch.bfloat16, generator)
    if params.values:
        # Planted queries look at element 0 alone, so a key without a level scores 0.
        k[..., 0] = 0.0
        ends = list(accumulate(params.context_lens))
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
