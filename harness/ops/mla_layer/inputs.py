"""Seeded inputs of `mla_layer`: hidden states, the angles of rope, and weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.ops.mla_layer.params import MlaLayerParams
from harness.ops.parts.inputs import OpInputs, Unowned

ROPE_BASE = 10_000.0


@dataclass(slots=True)
class LayerInputs(OpInputs):
    """Arguments of `mla_layer`."""

    hidden: Tensor
    seq_lens: Tensor
    cos: Tensor
    sin: Tensor
    q_a_proj: Tensor
    q_a_layernorm: Tensor
    q_b_proj: Tensor
    kv_a_proj: Tensor
    kv_a_layernorm: Tensor
    kv_b_proj: Tensor
    o_proj: Tensor
    num_heads: int
    scale: float
    epsilon: float


def draw(params: MlaLayerParams, seed: int) -> LayerInputs:
    """Hidden states of spread 1, and weights that keep the spread, all float32.

    Queries have spread 2, so that softmax prefers some keys. Norms have weights near 1.
    """
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int, spread: float = 1.0) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * (spread / math.sqrt(columns))

    def norm(width: int) -> Tensor:
        return 1 + torch.randn(width, generator=generator) / 4

    longest = max(params.seq_lens)
    hidden = torch.randn(len(params.seq_lens), longest, params.hidden_size, generator=generator)
    rope, heads = params.qk_rope_head_dim, params.num_heads
    head_dim = params.qk_nope_head_dim + rope
    frequencies = ROPE_BASE ** (-torch.arange(0, rope, 2) / rope)
    angles = torch.arange(longest)[:, None] * frequencies
    return LayerInputs(
        hidden=hidden,
        seq_lens=torch.tensor(params.seq_lens, dtype=torch.int32),
        cos=angles.cos(),
        sin=angles.sin(),
        q_a_proj=matrix(params.q_lora_rank, params.hidden_size),
        q_a_layernorm=norm(params.q_lora_rank),
        q_b_proj=matrix(heads * head_dim, params.q_lora_rank, spread=2.0),
        kv_a_proj=matrix(params.kv_lora_rank + rope, params.hidden_size),
        kv_a_layernorm=norm(params.kv_lora_rank),
        kv_b_proj=matrix(
            heads * (params.qk_nope_head_dim + params.v_head_dim), params.kv_lora_rank
        ),
        o_proj=matrix(params.hidden_size, heads * params.v_head_dim),
        num_heads=heads,
        scale=head_dim**-0.5,
        epsilon=1e-6,
        unowned=[
            Unowned("graph.pad_rows", hidden[b, length:])
            for b, length in enumerate(params.seq_lens)
        ],
    )
