"""What each op should return, in float64, from live memory alone.

A reference gathers exactly the memory that its op may depend on and never repairs a value: a NaN in live memory is a
NaN here. Rows that an op leaves undefined are NaN too, and `defined` says which are not.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from harness.core.ops import PAGE_SIZE, latent_rank

E4M3_MAX = 448.0
_NAN = float("nan")


class Attention(NamedTuple):
    """out and lse in float64, and which rows are defined; shapes as the op returns them."""

    out: Tensor
    lse: Tensor
    defined: Tensor


class Quantized(NamedTuple):
    """What x8 should hold before its rounding to e4m3 (NaN in padded rows), the scale, and the live rows."""

    scaled: Tensor
    scale: Tensor
    live: Tensor


class Routed(NamedTuple):
    """Expert ids [T, k] int64 in ascending order, and their weights [T, k] float64."""

    ids: Tensor
    weights: Tensor


def dequantized(stored: Tensor, kv_scale: float | None) -> Tensor:
    """Cache elements of any type as float64 values."""
    return stored.float().double() * (1.0 if kv_scale is None else kv_scale)


def gather_latents(kv_cache: Tensor, block_row: Tensor, num_tokens: int) -> Tensor:
    """The first `num_tokens` slots of one request: exactly these, in the cache's own type [num_tokens, D]."""
    positions = torch.arange(num_tokens, device=kv_cache.device)
    block = block_row.to(torch.int64)[positions // PAGE_SIZE]
    assert num_tokens == 0 or 0 <= int(block.min()) <= int(block.max()) < kv_cache.shape[0], "a live page is no page"
    flat = block * PAGE_SIZE + positions % PAGE_SIZE
    if kv_cache.element_size() > 1:
        return kv_cache.reshape(-1, kv_cache.shape[-1])[flat]
    raw = kv_cache.view(torch.uint8).reshape(-1, kv_cache.shape[-1])[flat]
    return raw.view(kv_cache.dtype)


def mla_decode(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor,
    *, scale: float, kv_scale: float | None = None, window: int | None = None,
) -> Attention:  # fmt: skip
    """out [B, S, H, R], lse [B, H, S], defined [B, S]: a query token without keys is undefined."""
    num_requests, num_query_tokens, num_heads, head_dim = q.shape
    rank = latent_rank(head_dim)
    out = torch.full((num_requests, num_query_tokens, num_heads, rank), _NAN, dtype=torch.float64, device=q.device)
    lse = torch.full((num_requests, num_heads, num_query_tokens), _NAN, dtype=torch.float64, device=q.device)
    defined = torch.zeros((num_requests, num_query_tokens), dtype=torch.bool, device=q.device)
    for b, length in enumerate(seq_lens.tolist()):
        keys = dequantized(gather_latents(kv_cache, block_table[b], length), kv_scale)
        for s in range(num_query_tokens):
            visible = length - num_query_tokens + s + 1
            if visible <= 0:
                continue
            first = 0 if window is None else max(visible - window, 0)
            scores = q[b, s].double() @ keys[first:visible].T * scale
            lse[b, :, s] = scores.logsumexp(dim=-1)
            out[b, s] = scores.softmax(dim=-1) @ keys[first:visible, :rank]
            defined[b, s] = True
    return Attention(out, lse, defined)


def mla_decode_sparse(
    q: Tensor, kv_cache: Tensor, indices: Tensor, *, scale: float, kv_scale: float | None = None
) -> Attention:
    """out [T, H, R], lse [T, H], defined [T]: a token whose indices are all negative is undefined."""
    num_tokens, num_heads, head_dim = q.shape
    rank = latent_rank(head_dim)
    out = torch.full((num_tokens, num_heads, rank), _NAN, dtype=torch.float64, device=q.device)
    lse = torch.full((num_tokens, num_heads), _NAN, dtype=torch.float64, device=q.device)
    defined = (indices >= 0).any(dim=1)
    page_size = kv_cache.shape[1]
    for t in defined.nonzero().flatten().tolist():
        slots = indices[t][indices[t] >= 0].tolist()
        rows = [kv_cache[slot // page_size, slot % page_size] for slot in slots]
        keys = dequantized(torch.stack(rows), kv_scale)
        scores = q[t].double() @ keys.T * scale
        lse[t] = scores.logsumexp(dim=-1)
        out[t] = scores.softmax(dim=-1) @ keys[:, :rank]
    return Attention(out, lse, defined)


def context_attention(
    q: Tensor, k: Tensor, v: Tensor, query_start_loc: Tensor, chunk_start_loc: Tensor, *, scale: float
) -> Attention:
    """out [T, H, V], lse [H, T], defined [T]: a token without keys in this chunk is undefined."""
    num_tokens, num_heads, _ = q.shape
    out = torch.full((num_tokens, num_heads, v.shape[-1]), _NAN, dtype=torch.float64, device=q.device)
    lse = torch.full((num_heads, num_tokens), _NAN, dtype=torch.float64, device=q.device)
    defined = torch.zeros(num_tokens, dtype=torch.bool, device=q.device)
    queries, chunks = query_start_loc.tolist(), chunk_start_loc.tolist()
    for b in range(len(queries) - 1):
        rows, keys = slice(queries[b], queries[b + 1]), slice(chunks[b], chunks[b + 1])
        if keys.start == keys.stop:
            continue
        scores = torch.einsum("thd,chd->htc", q[rows].double(), k[keys].double()) * scale
        lse[:, rows] = scores.logsumexp(dim=-1)
        out[rows] = torch.einsum("htc,chv->thv", scores.softmax(dim=-1), v[keys].double())
        defined[rows] = True
    return Attention(out, lse, defined)


def merge_attn_states(
    prefix_out: Tensor,
    prefix_lse: Tensor,
    suffix_out: Tensor,
    suffix_lse: Tensor,
    *,
    num_tokens_with_context: int | None = None,
) -> Attention:
    """out [T, H, V], lse [H, T], defined [T] (all). A side is looked at only where its lse says that it has keys."""
    num_tokens = prefix_out.shape[0]
    merged = num_tokens if num_tokens_with_context is None else num_tokens_with_context
    out, lse = suffix_out.double().clone(), suffix_lse.double().clone()
    if merged:
        logs = torch.stack([side[:, :merged].double() for side in (prefix_lse, suffix_lse)])
        values = torch.stack([side[:merged].double() for side in (prefix_out, suffix_out)])
        # An infinity of either sign says that a side has no keys: what stands in it is selected away, never weighed.
        has_keys = ~logs.isinf()
        logs = torch.where(has_keys, logs, -torch.inf)
        nobody = ~has_keys.any(dim=0)
        weights = torch.where(nobody, 0.0, logs.softmax(dim=0)).transpose(1, 2)[..., None]
        shown = torch.where(has_keys.transpose(1, 2)[..., None], values, 0.0)
        out[:merged] = (weights * shown).sum(dim=0)
        lse[:, :merged] = torch.where(nobody, -torch.inf, logs.logsumexp(dim=0))
    return Attention(out, lse, torch.ones(num_tokens, dtype=torch.bool, device=out.device))


def stored_latents(kv_c: Tensor, k_pe: Tensor, cache_dtype: torch.dtype, kv_scale: float | None) -> Tensor:
    """What `write_kv` should store for each token, before rounding to the cache's type: [T, D] float64."""
    rows = torch.cat((kv_c, k_pe), dim=-1).double()
    if cache_dtype != torch.float8_e4m3fn:
        return rows
    return (rows / (1.0 if kv_scale is None else kv_scale)).clamp(-E4M3_MAX, E4M3_MAX)


def quantize_fp8(x: Tensor, num_live: int, *, per_token: bool = False) -> Quantized:
    """Per-tensor (scale [1]) or per-token (scale [T, 1]) quantization of the first `num_live` rows of x [T, K]."""
    live = x[:num_live].double()
    amax = live.abs().amax(dim=1, keepdim=True) if per_token else live.abs().amax().reshape(1)
    of_live = torch.where(amax == 0, 1.0, amax / E4M3_MAX)
    scaled = torch.full(x.shape, _NAN, dtype=torch.float64, device=x.device)
    scaled[:num_live] = live / of_live
    scale = of_live
    if per_token:
        scale = torch.full((x.shape[0], 1), _NAN, dtype=torch.float64, device=x.device)
        scale[:num_live] = of_live
    defined = torch.arange(x.shape[0], device=x.device) < num_live
    return Quantized(scaled, scale, defined)


def route_experts(logits: Tensor, num_experts_per_tok: int) -> Routed:
    """The k experts with the largest logits of each token, by ascending id, with softmax weights that sum to 1."""
    scores = logits.double().softmax(dim=-1)
    ids = scores.topk(num_experts_per_tok, dim=-1).indices.sort(dim=-1).values
    weights = scores.gather(1, ids)
    return Routed(ids, weights / weights.sum(dim=-1, keepdim=True))
