"""Merging two partial attentions by their log-sum-exp, with empty sides selected away."""

from __future__ import annotations

import torch
from torch import Tensor


def merge_attn_states(
    prefix_out: Tensor,
    prefix_lse: Tensor,
    suffix_out: Tensor,
    suffix_lse: Tensor,
    *,
    num_tokens_with_context: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Merge attention over a prefix of the keys with attention over the rest.

    prefix_out, suffix_out: [T, H, V], prefix_lse, suffix_lse: [H, T] float32 -> out [T, H, V] in the prefix's dtype,
    lse [H, T] float32. Tokens at or past `num_tokens_with_context` (None: T) are copied from the suffix; their prefix
    rows are not read. An lse of -inf or +inf marks a side without keys, whose output is never multiplied; with both
    sides empty the output is 0 and the lse -inf.
    """
    num_tokens = prefix_out.shape[0]
    merged = num_tokens if num_tokens_with_context is None else num_tokens_with_context
    if not 0 <= merged <= num_tokens:
        raise ValueError(f"num_tokens_with_context={merged} is outside 0..{num_tokens}")
    out = torch.empty_like(prefix_out)
    lse = torch.empty_like(prefix_lse)
    out[:merged], lse[:, :merged] = _merge(
        prefix_out[:merged], prefix_lse[:, :merged], suffix_out[:merged], suffix_lse[:, :merged]
    )
    out[merged:] = suffix_out[merged:]
    lse[:, merged:] = suffix_lse[:, merged:]
    return out, lse


def _merge(prefix_out: Tensor, prefix_lse: Tensor, suffix_out: Tensor, suffix_lse: Tensor) -> tuple[Tensor, Tensor]:
    minus_inf = float("-inf")
    prefix_empty, suffix_empty = prefix_lse.isinf(), suffix_lse.isinf()
    prefix_lse = prefix_lse.masked_fill(prefix_empty, minus_inf)
    suffix_lse = suffix_lse.masked_fill(suffix_empty, minus_inf)
    maximum = torch.maximum(prefix_lse, suffix_lse)
    shift = maximum.masked_fill(maximum == minus_inf, 0.0)
    prefix_sum, suffix_sum = (prefix_lse - shift).exp(), (suffix_lse - shift).exp()
    total = prefix_sum + suffix_sum
    blend = prefix_out.float() * _by_row(prefix_sum / total) + suffix_out.float() * _by_row(suffix_sum / total)
    blend = torch.where(_by_row(suffix_empty), prefix_out.float(), blend)
    blend = torch.where(_by_row(prefix_empty), suffix_out.float(), blend)
    blend = blend.masked_fill(_by_row(prefix_empty & suffix_empty), 0.0)
    return blend.to(prefix_out.dtype), shift + total.log()


def _by_row(by_head: Tensor) -> Tensor:
    """[H, T] -> [T, H, 1], to stand beside an output."""
    return by_head.transpose(0, 1)[..., None]
