"""The reference of `merge_attn_states`, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.ops.parts.attention import WantedAttention


def expected(
    prefix_out: Tensor,
    prefix_lse: Tensor,
    suffix_out: Tensor,
    suffix_lse: Tensor,
    *,
    num_tokens_with_context: int | None = None,
) -> WantedAttention:
    """The merge of two partial attentions by their lse, in float64.

    prefix_out [T, H, V] and suffix_out [T, H, V] bfloat16 or float32, prefix_lse [H, T] and
    suffix_lse [H, T] float32 -> out [T, H, V] and lse [H, T] float64, defined [T] bool (all).

    A side counts only where its lse is finite or NaN.
    """
    num_tokens = prefix_out.shape[0]
    merged = num_tokens if num_tokens_with_context is None else num_tokens_with_context
    out = suffix_out.double().clone()
    lse = suffix_lse.double().clone()
    if merged:
        logs = torch.stack([side[:, :merged].double() for side in (prefix_lse, suffix_lse)])
        values = torch.stack([side[:merged].double() for side in (prefix_out, suffix_out)])
        # An infinity of either sign marks a side without keys. It is selected away: a weight of 0
        # would keep its NaN.
        has_keys = ~logs.isinf()
        logs = torch.where(has_keys, logs, -torch.inf)
        no_keys = ~has_keys.any(dim=0)
        weights = torch.where(no_keys, 0.0, logs.softmax(dim=0)).transpose(1, 2)[..., None]
        shown = torch.where(has_keys.transpose(1, 2)[..., None], values, 0.0)
        out[:merged] = (weights * shown).sum(dim=0)
        lse[:, :merged] = torch.where(no_keys, -torch.inf, logs.logsumexp(dim=0))
    return WantedAttention(out, lse, torch.ones(num_tokens, dtype=torch.bool, device=out.device))
