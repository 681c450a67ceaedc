"""Faults of the tokens chosen from rows that a speculative step verifies."""

from __future__ import annotations

import torch
from torch import Tensor


def token_above_all(logits: Tensor) -> Tensor:
    """Start from the vocabulary's size and take a token if its logit is greater than the best so far. In a row of NaN
    no logit is, and the token does not exist (PR 53029)."""
    vocab_size = logits.shape[-1]
    best = logits.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).argmax(dim=-1)
    return torch.where(logits.isnan().all(dim=-1), vocab_size, best)
