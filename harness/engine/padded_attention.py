"""Attention of prompts on a GPU: all requests padded to the longest, in few launches."""

from __future__ import annotations

import torch
from torch import Tensor


def padded_causal_attention(
    q: Tensor, k: Tensor, v: Tensor, spans: list[tuple[int, int]], scale: float
) -> tuple[Tensor, Tensor]:
    """As `causal_attention`, with its shapes, and all requests padded to the longest: launches cost a GPU more.

    Padding follows a request's tokens, so the causal mask hides its scores. Its values are zeroed, because a weight
    of 0 does not remove NaN.
    """
    longest = max(end - start for start, end in spans)
    bounds = torch.tensor(spans, device=q.device)
    padded_rows = bounds[:, :1] + torch.arange(longest, device=q.device)
    live = padded_rows < bounds[:, 1:]
    rows = torch.where(live, padded_rows, bounds[:, :1])
    scores = torch.einsum("bqhd,bkhd->bhqk", q[rows], k[rows]) * scale
    future = torch.ones(longest, longest, dtype=torch.bool, device=q.device).triu(1)
    scores = scores.masked_fill(future, -torch.inf)
    values = torch.where(live[:, :, None, None], v[rows], 0.0)
    out = torch.einsum("bhqk,bkhv->bqhv", scores.softmax(-1), values)
    # Padding is scattered to one more row, which is cut off.
    total = q.shape[0]
    target = torch.where(live, padded_rows, total)
    packed = out.new_empty(total + 1, *out.shape[2:])
    packed[target] = out
    lse = scores.new_empty(total + 1, q.shape[1])
    lse[target] = scores.logsumexp(-1).transpose(1, 2)
    return packed[:total], lse[:total].T.contiguous()
