"""Known bugs of kernels of `quantize_blocks`, which are injected on purpose."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from harness.ops.parts.block_formats import num_scale_rows

WARP_ROWS = 4


def scales_unwritten(num_rows: int, num_blocks: int, device: torch.device) -> Tensor:
    """Leave the rows that round a scale tensor up as memory was (vllm-project/vllm#38148)."""
    return torch.empty((num_rows, num_blocks), dtype=torch.uint8, device=device)


def amax_of_row_groups(magnitudes: Tensor) -> Tensor:
    """Reduce `magnitudes` [T, G, elements] float32 over the rows of a warp as well
    (flashinfer-ai/flashinfer#3057).
    """
    amax = magnitudes.amax(dim=-1)
    groups = [
        group.amax(dim=0, keepdim=True).expand_as(group) for group in torch.split(amax, WARP_ROWS)
    ]
    return torch.cat(groups)


def orphans_to_expert_zero(num_rows: int, offsets: list[int]) -> Tensor:
    """Take expert 0 for the expert of rows that have none (flashinfer-ai/flashinfer#3574)."""
    rows = torch.arange(num_rows)
    first = 0
    for start, end in pairwise(offsets):
        rows[start:end] = torch.arange(first, first + end - start)
        first += num_scale_rows([end - start])
    return rows
