"""Expert ids of tokens that nobody routed, or that another rank's expert takes."""

from __future__ import annotations

import torch
from torch import Tensor


def padding_unmasked(ids: Tensor, num_live: Tensor) -> Tensor:
    """Leave the ids of padding as memory was (sgl-project/sglang#28378)."""
    return ids


def top_by_greater_than(scores: Tensor, num_experts_per_tok: int) -> tuple[Tensor, Tensor]:
    """Keep what is greater than the best so far, starting at expert 0: in a row of NaN nothing is, k times over
    (vllm-project/vllm#39593)."""
    left = torch.where(scores.isnan(), -torch.inf, scores)
    chosen = []
    for _ in range(num_experts_per_tok):
        best = left.argmax(dim=-1, keepdim=True)
        chosen.append(best)
        left = left.scatter(1, best, -torch.inf)
    ids = torch.cat(chosen, dim=1)
    return scores.gather(1, ids), ids


def ids_from_the_end(ids: Tensor, num_experts: int) -> Tensor:
    """Count -1 from the end of the rank's experts, behind which only the trap stands (vllm-project/vllm#46408)."""
    return torch.where(ids == -1, num_experts - 2, ids)
