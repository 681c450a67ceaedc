"""Kernels that are right for the values of tests, and wrong for rare ones.

A maximum that starts at 0 in place of -inf, a branch for equal numbers, a largest element that
counts as 0, a scale that is applied where nothing is scaled.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trust.planted.plant import planted, right


@planted("merge_attn_states")
def merge_max_starts_at_0(
    prefix_out: Tensor, prefix_lse: Tensor, suffix_out: Tensor, suffix_lse: Tensor, **keywords: Any
) -> Any:
    """Takes the larger lse off, but not less than 0: two lse below -88 give 0 / 0."""
    out, lse = right(
        "merge_attn_states", prefix_out, prefix_lse, suffix_out, suffix_lse, **keywords
    )
    merged = keywords.get("num_tokens_with_context")
    merged = len(out) if merged is None else merged
    both = torch.maximum(prefix_lse, suffix_lse)[:, :merged]
    is_lost = ((both < -88) & both.isfinite()).T[..., None]
    out[:merged] = out[:merged].masked_fill(is_lost, float("nan"))
    return out, lse


@planted("merge_attn_states")
def merge_of_equals_takes_prefix(
    prefix_out: Tensor, prefix_lse: Tensor, suffix_out: Tensor, suffix_lse: Tensor, **keywords: Any
) -> Any:
    """Takes the prefix alone where both lse are equal."""
    out, lse = right(
        "merge_attn_states", prefix_out, prefix_lse, suffix_out, suffix_lse, **keywords
    )
    is_equal = ((prefix_lse == suffix_lse) & prefix_lse.isfinite()).T[..., None]
    return torch.where(is_equal, prefix_out, out), lse


@planted("route_experts")
def router_max_starts_at_0(logits: Tensor, *, num_experts_per_tok: int) -> Any:
    """Takes the largest logit off, but not less than 0: logits below -88 all weigh 0."""
    ids, weights = right("route_experts", logits, num_experts_per_tok=num_experts_per_tok)
    return ids, weights.masked_fill(logits.amax(dim=1, keepdim=True) < -88, float("nan"))


@planted("route_experts")
def router_weights_from_exp_alone(logits: Tensor, *, num_experts_per_tok: int) -> Any:
    """Weighs by exp(min(logit, 80)), as nothing overflows then: low logits all weigh 0."""
    ids, _ = right("route_experts", logits, num_experts_per_tok=num_experts_per_tok)
    chosen = logits.gather(1, ids.long())
    top = chosen.amax(dim=1, keepdim=True).clamp(min=-80)
    weights = (chosen - top).exp()
    return ids, weights / weights.sum(dim=1, keepdim=True).clamp(min=1e-30)


@planted("mla_decode", takes=("window",))
def decode_of_low_scores_is_0(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """Returns 0 where every score is below -88."""
    out, lse = right("mla_decode", q, kv_cache, block_table, seq_lens, **keywords)
    out = torch.where((lse < -80).transpose(1, 2)[..., None], 0.0, out)
    return out, lse


@planted("mla_decode", takes=("window",))
def decode_max_starts_at_minus_20(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """Adds exp(-20) to the sum, as its first maximum is -20 and not -inf."""
    out, lse = right("mla_decode", q, kv_cache, block_table, seq_lens, **keywords)
    found = torch.logaddexp(lse, torch.full_like(lse, -20.0))
    is_live = lse.isfinite()
    out = out * torch.where(is_live, (lse - found).exp(), 1.0).transpose(1, 2)[..., None]
    return out.to(q.dtype), torch.where(is_live, found, lse)


@planted("mla_decode_sparse")
def sparse_of_low_scores_is_0(q: Tensor, kv_cache: Tensor, indices: Tensor, **keywords: Any) -> Any:
    """Returns 0 where every score is below -88."""
    out, lse = right("mla_decode_sparse", q, kv_cache, indices, **keywords)
    return torch.where((lse < -80)[..., None], 0.0, out), lse


@planted("context_attention")
def context_of_low_scores_is_empty(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_start_loc: Tensor,
    chunk_start_loc: Tensor,
    **keywords: Any,
) -> Any:
    """Returns an lse of -inf where every score is below -88."""
    out, lse = right("context_attention", q, k, v, query_start_loc, chunk_start_loc, **keywords)
    return out, torch.where(lse < -80, float("-inf"), lse)


@planted("quantize_fp8", takes=("num_live",))
def amax_below_1e_9_is_0(x: Tensor, *, num_live: int | None = None) -> Any:
    """Takes a largest element below 1e-9 for 0."""
    x8, scale = right("quantize_fp8", x, num_live=num_live)
    if float(scale) * 448 < 1e-9:
        return torch.zeros_like(x8), torch.ones_like(scale)
    return x8, scale


@planted("quantize_fp8", takes=("num_live",))
def row_amax_below_1e_9_is_0(x: Tensor, *, num_live: int | None = None) -> Any:
    """The same by rows: a faint row beside others is lost."""
    amax = x.float().abs().amax(dim=1, keepdim=True)
    scale = torch.where(amax < 1e-9, 1.0, amax / 448)
    return (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


@planted("quantize_blocks")
def reciprocal_of_a_subnormal(x: Tensor, expert_offsets: Tensor, *, block_format: str) -> Any:
    """Multiplies by 1 / amax, which is infinite for a block below 2^-126: its codes are the
    largest.
    """
    values, scales = right("quantize_blocks", x, expert_offsets, block_format=block_format)
    size = 16 if block_format == "nvfp4" else 32
    amax = x.float().abs().view(len(x), -1, size).amax(dim=2)
    is_lost = ((amax > 0) & (amax < 2.0**-126)).repeat_interleave(
        values.shape[1] // amax.shape[1], dim=1
    )
    largest = 0x7E if block_format == "mxfp8" else 0x77
    return torch.where(is_lost, largest, values), scales


@planted("mla_decode", takes=("window",))
def decode_scales_a_float_cache(
    q: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    **keywords: Any,
) -> Any:
    """Applies the checkpoint's scale to a bfloat16 cache (vllm-project/vllm#37054)."""
    kv_scale = keywords.get("kv_scale")
    if kv_scale is not None and kv_cache.dtype != torch.float8_e4m3fn:
        scale = scale * kv_scale
    return right("mla_decode", q, kv_cache, block_table, seq_lens, scale=scale, **keywords)


@planted("mla_decode_sparse")
def sparse_scales_a_float_cache(
    q: Tensor, kv_cache: Tensor, indices: Tensor, *, scale: float, **keywords: Any
) -> Any:
    """Applies the checkpoint's scale to a bfloat16 cache (sgl-project/sglang#18396)."""
    kv_scale = keywords.get("kv_scale")
    if kv_scale is not None and kv_cache.dtype != torch.float8_e4m3fn:
        scale = scale * kv_scale
    return right("mla_decode_sparse", q, kv_cache, indices, scale=scale, **keywords)


@planted("write_kv")
def write_scales_a_float_cache(
    kv_c: Tensor,
    k_pe: Tensor,
    kv_cache: Tensor,
    slot_mapping: Tensor,
    *,
    kv_scale: float | None = None,
) -> None:
    """Divides what it stores in a bfloat16 cache by the checkpoint's scale."""
    if kv_scale is not None and kv_cache.dtype != torch.float8_e4m3fn:
        kv_c, k_pe = kv_c / kv_scale, k_pe / kv_scale
    right("write_kv", kv_c, k_pe, kv_cache, slot_mapping, kv_scale=kv_scale)


@planted("write_kv")
def fp8_slots_62_and_63_stored_as_one(
    kv_c: Tensor,
    k_pe: Tensor,
    kv_cache: Tensor,
    slot_mapping: Tensor,
    *,
    kv_scale: float | None = None,
) -> None:
    """Stores two slots of an fp8 page at once: slot 63 behind slot 62 gets the row of slot 62."""
    rows = torch.arange(len(slot_mapping))
    if kv_cache.dtype == torch.float8_e4m3fn:
        behind = (slot_mapping % 64 == 63) & (slot_mapping - slot_mapping.roll(1) == 1)
        behind[0] = False
        rows = rows - behind.long()
    right("write_kv", kv_c[rows], k_pe[rows], kv_cache, slot_mapping, kv_scale=kv_scale)


@planted("select_topk")
def padding_among_masked_scores(logits: Tensor, seq_lens: Tensor, *, topk: int) -> Tensor:
    """Masks what is past a row with -inf, so a row whose own scores are -inf takes it too."""
    tokens = len(logits) // max(len(seq_lens), 1)
    lengths = (seq_lens[:, None] - tokens + 1 + torch.arange(tokens)).flatten()[:, None]
    width = logits.shape[1]
    scores = logits.masked_fill(torch.arange(width) >= lengths, float("-inf")).flip(1)
    # Of equals the latest: with -inf in the row that is the last column, past the row.
    order = width - 1 - scores.sort(dim=1, descending=True, stable=True).indices[:, :topk]
    found = torch.full((len(logits), topk), -1, dtype=torch.int32)
    found[:, : order.shape[1]] = order.to(torch.int32)
    return found.masked_fill(torch.arange(topk) >= lengths.clamp(min=0), -1)
