"""Rows of kernels that take one query token a row."""

from __future__ import annotations

import torch
from torch import Tensor


def row_lengths(seq_lens: Tensor, num_tokens: int) -> Tensor:
    """The keys that each query token sees: seq_lens [B] int32 or int64 -> [B * S] of that type.

    The S = `num_tokens` query tokens of a request are its last ones. A request that is shorter has
    tokens that see no key.
    """
    steps = torch.arange(1 - num_tokens, 1, device=seq_lens.device, dtype=seq_lens.dtype)
    return (seq_lens[:, None] + steps).clamp(min=0).flatten()
