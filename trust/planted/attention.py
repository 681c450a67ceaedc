"""Attention in a loop over requests and keys, from which planted kernels differ in a few lines."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from harness.core.ops import latent_rank

MINUS_INF = float("-inf")
Slots = Callable[[int, int], Tensor]
"""Request and count -> the positions [n] int64 that are read, as keys or as values."""


def paged(kv_cache: Tensor, row: Tensor, positions: Tensor) -> Tensor:
    """The latents [n, D] float32 at positions [n] int64 of a request with the table row [M] int32.

    kv_cache [N, P, D] is of any float type.
    """
    size = kv_cache.shape[1]
    return kv_cache[row.long()[positions // size], positions % size].float()


def decode(
    q: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    kv_scale: float | None = None,
    window: int | None = None,
    lengths: Tensor | None = None,
    values_at: Slots | None = None,
    is_causal: bool = True,
    value_scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """`mla_decode`: q [B, S, H, D] and kv_cache [N, P, D] of float types, block_table [B, M] and
    seq_lens [B] int32 -> out [B, S, H, R] in q's type and lse [B, H, S] float32.

    `lengths` [B] int32 are the keys that are read in place of seq_lens, `values_at` the slots of the
    values, `value_scale` what multiplies them in place of the scale of an fp8 cache.
    """
    batch, tokens, heads, width = q.shape
    rank = latent_rank(width)
    out = torch.empty(batch, tokens, heads, rank, dtype=q.dtype)
    lse = torch.empty(batch, heads, tokens, dtype=torch.float32)
    is_scaled = kv_cache.dtype == torch.float8_e4m3fn and kv_scale is not None
    factor = kv_scale if is_scaled and kv_scale is not None else 1.0
    for b, length in enumerate(seq_lens.tolist()):
        count = length if lengths is None else int(lengths[b])
        if not length or not count:
            continue
        at = torch.arange(count)
        keys = paged(kv_cache, block_table[b], at) * factor
        places = at if values_at is None else values_at(b, count)
        values = paged(kv_cache, block_table[b], places)[:, :rank]
        scores = torch.einsum("shd,nd->hsn", q[b].float(), keys) * scale
        last = length - tokens + torch.arange(tokens)[:, None]
        if is_causal:
            scores = scores.masked_fill(at > last, MINUS_INF)
        if window is not None:
            scores = scores.masked_fill(at <= last - window, MINUS_INF)
        lse[b] = scores.logsumexp(-1)
        # A token that sees no key has weights of NaN, as a kernel would divide 0 by 0.
        weights = (scores - lse[b][..., None]).exp()
        shown = values * (factor if value_scale is None else value_scale)
        out[b] = torch.einsum("hsn,nr->shr", weights, shown).to(q.dtype)
    return out, lse
