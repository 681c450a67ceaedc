"""Right choices of `select_topk`."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.ops.parts.pages import lengths_of_rows


def right_choice(logits: Tensor, seq_lens: Tensor, chosen: Tensor) -> Tensor:
    """A right choice [T, K] int64 for each row, in falling order: the row of `chosen` [T, K] if it
    is one.

    A choice is right if it has distinct positions below the row's length, as many as there are or
    K, and none that is left has a larger logit. logits [T, L] float32.

    seq_lens [B] is int32, in tokens; T / B rows belong to each request.
    """
    lengths = lengths_of_rows(seq_lens, len(logits) // len(seq_lens)).tolist()
    found = chosen.long().sort(dim=1, descending=True).values
    for row, length in enumerate(lengths):
        count = min(length, chosen.shape[1])
        own = found[row, :count]
        values = logits[row, :length]
        inside = bool(((own >= 0) & (own < length)).all()) and len(set(own.tolist())) == count
        if inside and bool((found[row, count:] == -1).all()):
            left = torch.ones(length, dtype=torch.bool)
            left[own] = False
            if count == length or count == 0 or bool(values[own].min() >= values[left].max()):
                continue
        found[row] = -1
        found[row, :count] = (
            values.argsort(descending=True, stable=True)[:count].sort(descending=True).values
        )
    return found
