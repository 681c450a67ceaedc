"""Choosing experts: softmax, top-k, renormalised."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.core.seams import seam


def route_experts(logits: Tensor, *, num_experts_per_tok: int) -> tuple[Tensor, Tensor]:
    """Choose k experts for each token: logits [T, X] -> ids [T, k] int32, weights [T, k] float32 that sum to 1.

    The ids of a token are distinct even where its logits are NaN.
    """
    top, chosen = top_experts(logits.float().softmax(dim=-1), num_experts_per_tok)
    ids = empty_ids(*chosen.shape, device=logits.device)
    weights = torch.empty(top.shape, dtype=torch.float32, device=logits.device)
    ids.copy_(chosen)
    weights.copy_(top / top.sum(dim=-1, keepdim=True))
    return ids, weights


def route_experts_live(
    logits: Tensor, *, num_experts_per_tok: int, num_live: int | Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """As `route_experts` for the first `num_live` tokens (None: all); the rows of the others are not written."""
    top, chosen = top_experts(logits.float().softmax(dim=-1), num_experts_per_tok)
    ids = empty_ids(*chosen.shape, device=logits.device)
    weights = torch.empty(top.shape, dtype=torch.float32, device=logits.device)
    live = torch.arange(len(ids), device=logits.device)[:, None] < (len(ids) if num_live is None else num_live)
    ids.copy_(torch.where(live, chosen.to(ids.dtype), ids))
    weights.copy_(torch.where(live, top / top.sum(dim=-1, keepdim=True), weights))
    return ids, weights


@seam("router.duplicates-from-nan-rows")
def top_experts(scores: Tensor, num_experts_per_tok: int) -> tuple[Tensor, Tensor]:
    """The k largest of scores [T, X] and where they stand, k different places whatever a row holds.

    NaN sorts as the largest here. An iterated "greater than" finds nothing in a row of NaN and gives one place k times
    (PR 39593).
    """
    top, chosen = scores.topk(num_experts_per_tok, dim=-1)
    return top, chosen


def empty_ids(num_tokens: int, num_experts_per_tok: int, *, device: torch.device) -> Tensor:
    """The buffer of expert ids, int32 as the expert kernel reads it."""
    return torch.empty((num_tokens, num_experts_per_tok), dtype=torch.int32, device=device)
