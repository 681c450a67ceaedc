"""Known bugs of kernels of `route_experts`, which are injected on purpose."""

from __future__ import annotations

import torch
from torch import Tensor


def top_by_greater_than(scores: Tensor, num_experts_per_tok: int) -> tuple[Tensor, Tensor]:
    """Keep a score of scores [T, X] float32 that is greater than the best so far, starting at
    expert 0.

    In a row of NaN no score is, so that expert 0 is chosen k times (vllm-project/vllm#39593).
    Returns the scores [T, k] and the experts [T, k] int64.
    """
    left = torch.where(scores.isnan(), -torch.inf, scores)
    chosen = []
    for _ in range(num_experts_per_tok):
        best = left.argmax(dim=-1, keepdim=True)
        chosen.append(best)
        left = left.scatter(1, best, -torch.inf)
    ids = torch.cat(chosen, dim=1)
    return scores.gather(1, ids), ids
