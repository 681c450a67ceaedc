"""The reference of `context_attention`, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.ops.parts.attention import NAN, WantedAttention


def expected(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_start_loc: Tensor,
    chunk_start_loc: Tensor,
    *,
    scale: float,
) -> WantedAttention:
    """Attention of each prompt's tokens to the keys of its chunk, without a mask, in float64.

    q [T, H, E'], k [C, H, E'] and v [C, H, V] bfloat16 or float32, query_start_loc [B + 1] and
    chunk_start_loc [B + 1] int32 -> out [T, H, V] and lse [H, T] float64 (natural logarithm),
    defined [T] bool: a token without keys in this chunk is undefined.
    """
    num_tokens, num_heads, _ = q.shape
    out = torch.full(
        (num_tokens, num_heads, v.shape[-1]), NAN, dtype=torch.float64, device=q.device
    )
    lse = torch.full((num_heads, num_tokens), NAN, dtype=torch.float64, device=q.device)
    defined = torch.zeros(num_tokens, dtype=torch.bool, device=q.device)
    queries = query_start_loc.tolist()
    chunks = chunk_start_loc.tolist()
    for b in range(len(queries) - 1):
        rows = slice(queries[b], queries[b + 1])
        keys = slice(chunks[b], chunks[b + 1])
        # A softmax over no keys is NaN. The row stays undefined.
        if keys.start == keys.stop:
            continue
        scores = torch.einsum("thd,chd->htc", q[rows].double(), k[keys].double()) * scale
        lse[:, rows] = scores.logsumexp(dim=-1)
        out[rows] = torch.einsum("htc,chv->thv", scores.softmax(dim=-1), v[keys].double())
        defined[rows] = True
    return WantedAttention(out, lse, defined)
