"""Choosing experts: softmax, top-k, renormalised."""

from __future__ import annotations

import torch
from torch import Tensor


def route_experts(logits: Tensor, *, num_experts_per_tok: int) -> tuple[Tensor, Tensor]:
    """Choose k experts for each token: logits [T, X] -> ids [T, k] int32, weights [T, k] float32 that sum to 1.

    The ids of a token are distinct even where its logits are NaN, which sorts as the largest; an iterated "greater
    than" would return one expert k times (vllm-project/vllm#39593).
    """
    scores = logits.float().softmax(dim=-1)
    top, chosen = scores.topk(num_experts_per_tok, dim=-1)
    ids = empty_ids(*chosen.shape, device=logits.device)
    weights = torch.empty(top.shape, dtype=torch.float32, device=logits.device)
    ids.copy_(chosen)
    weights.copy_(top / top.sum(dim=-1, keepdim=True))
    return ids, weights


def empty_ids(num_tokens: int, num_experts_per_tok: int, *, device: torch.device) -> Tensor:
    """The buffer of expert ids, int32 as the expert kernel reads it."""
    return torch.empty((num_tokens, num_experts_per_tok), dtype=torch.int32, device=device)
