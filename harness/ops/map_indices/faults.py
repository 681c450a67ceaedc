"""Known bugs of kernels of `map_indices`, which are injected on purpose."""

from __future__ import annotations

import torch
from torch import Tensor


def every_token(positions: Tensor, requests: Tensor) -> int:
    """A row for each token of the batch: positions [T, K] int32, requests [T or more] int32
    (vllm-project/vllm#48611).
    """
    return len(requests)


def columns_from_the_end(
    positions: Tensor, page_size: int, num_columns: int
) -> tuple[Tensor, Tensor]:
    """Look up -1 among positions [T, K] as the last entry of the row (sgl-project/sglang#32771).

    positions is int32. Returns the columns [T, K] and a mask [T, K] bool that takes every entry for
    a position.
    """
    return positions.div(page_size, rounding_mode="floor") % num_columns, torch.ones_like(
        positions, dtype=torch.bool
    )
