"""The reference of `merge_attn_states`, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.ops.parts.attention import Attention


def expected(
    prefix_out: Tensor,
    prefix_lse: Tensor,
    suffix_out: Tensor,
    suffix_lse: Tensor,
    *,
    num_tokens_with_context: int | None = None,
) -> Attention:
    """out [T, H, V], lse [H, T], defined [T] (all).

    A side counts only where its lse is finite or NaN.
    """
    num_tokens = prefix_out.shape[0]
    merged = num_tokens if num_tokens_with_context is None else num_tokens_with_context
    out, lse = suffix_out.double().clone(), suffix_lse.double().clone()
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
    return Attention(out, lse, torch.ones(num_tokens, dtype=torch.bool, device=out.device))
