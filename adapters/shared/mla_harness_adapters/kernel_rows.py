"""Rows of kernels that take one query token a row, and the lists of those that choose tokens."""

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


def slots_of_rows(
    block_table: Tensor, seq_lens: Tensor, *, num_tokens: int, page_size: int, columns: int
) -> Tensor:
    """The slots of every key that each query token sees, for a sparse kernel that is asked for all.

    block_table [B, M] int32, seq_lens [B] int32 -> [B * S, columns] int32, in order, -1 past the
    last one. S is `num_tokens`, as in `row_lengths`.
    """
    position = torch.arange(columns, device=block_table.device)
    column = (position // page_size).clamp(max=block_table.shape[1] - 1)
    slots = block_table.long()[:, column] * page_size + position % page_size
    lengths = row_lengths(seq_lens, num_tokens).view(len(seq_lens), num_tokens, 1)
    return torch.where(position < lengths, slots[:, None], -1).flatten(0, 1).to(torch.int32)
