"""Rows of outputs, and the keys that each may see, for kernels in torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_poison.allocations import only_writes

from harness.memory.bounds import check_indices


@only_writes
def row_lengths(seq_lens: Tensor, num_tokens: int) -> Tensor:
    """The keys [B * S] that each query token sees, of requests of lengths seq_lens [B] with S
    tokens each.

    seq_lens and the result are int32, in tokens; a result is 0, not negative, for a padded request.
    """
    steps = torch.arange(1 - num_tokens, 1, device=seq_lens.device, dtype=seq_lens.dtype)
    return (seq_lens[:, None] + steps).clamp(min=0).flatten()


def rows_at(tensor: Tensor, rows: int) -> Tensor:
    """The first rows [rows, K] at the address of a tensor [T, K], past its end too: a kernel sees
    no end.

    Of any dtype; indices are int32. Raises IllegalAddress for rows past the memory behind the
    tensor.
    """
    if rows == len(tensor):
        return tensor
    last = int(tensor.storage_offset()) + (rows - 1) * tensor.stride(0) + tensor.shape[1] - 1
    check_indices(
        torch.tensor([last]),
        tensor.untyped_storage().nbytes() // tensor.element_size(),
        "row of indices",
    )
    return tensor.as_strided((rows, tensor.shape[1]), tensor.stride())
