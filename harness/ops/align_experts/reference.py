"""The reference of `align_experts`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Aligned(NamedTuple):
    """The live entries of `align_experts`, and the expert of each live block: int64."""

    sorted_ids: Tensor
    expert_ids: Tensor


def expected(topk_ids: Tensor, *, num_experts: int, block_size: int) -> Aligned:
    """Choices of topk_ids [T, k] in ascending order in each expert's run, then T * k to the end of
    its last block.

    topk_ids is int32; both results are int64. Experts without choices have no block.
    """
    choices = topk_ids.flatten().long()
    runs = list[Tensor]()
    experts = list[int]()
    for expert in range(num_experts):
        mine = (choices == expert).nonzero().flatten()
        blocks = -(-len(mine) // block_size)
        runs.append(
            torch.cat([mine, mine.new_full((blocks * block_size - len(mine),), len(choices))])
        )
        experts += [expert] * blocks
    return Aligned(torch.cat(runs), torch.tensor(experts))
