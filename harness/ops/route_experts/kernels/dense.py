"""The choice of experts in torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_poison.allocations import only_writes

from harness.core.seams import seam
from harness.kernels.checks import check_range


def route_experts(logits: Tensor, *, num_experts_per_tok: int) -> tuple[Tensor, Tensor]:
    """Choose k experts for each token: logits [T, X] -> ids [T, k] int32, weights [T, k] float32
    that sum to 1.

    The ids of a token are distinct even if its logits are NaN.
    """
    return route_experts_live(logits, num_experts_per_tok=num_experts_per_tok)


def route_experts_live(
    logits: Tensor, *, num_experts_per_tok: int, num_live: int | Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """As `route_experts` for the first `num_live` rows of logits [T, X] (None: all).

    The others are not written.

    logits is float32 -> ids [T, k] int32, weights [T, k] float32.
    """
    check_range("num_experts_per_tok", num_experts_per_tok, 1, logits.shape[1])
    shape = len(logits), num_experts_per_tok
    # The expert kernel reads ids as int32.
    ids = torch.empty(shape, dtype=torch.int32, device=logits.device)
    weights = torch.empty(shape, dtype=torch.float32, device=logits.device)
    _store_top(ids, weights, logits, num_live)
    return ids, weights


@only_writes
def _store_top(ids: Tensor, weights: Tensor, logits: Tensor, num_live: int | Tensor | None) -> None:
    """Write ids [T, k] int32 and weights [T, k] float32 of the live rows of logits [T, X]."""
    top, chosen = top_experts(logits.float().softmax(dim=-1), ids.shape[1])
    live = torch.arange(len(ids), device=logits.device)[:, None] < (
        len(ids) if num_live is None else num_live
    )
    ids.copy_(torch.where(live, chosen.to(ids.dtype), ids))
    weights.copy_(torch.where(live, top / top.sum(dim=-1, keepdim=True), weights))


@seam("router.duplicates-from-nan-rows")
def top_experts(scores: Tensor, num_experts_per_tok: int) -> tuple[Tensor, Tensor]:
    """The k largest scores of [T, X] and their indices: [T, k] each, k different indices for any
    row.

    NaN sorts as the largest. An iterated "greater than" finds nothing in a row of NaN and repeats
    one index k times (vllm-project/vllm#39593).

    scores is float32, the indices int64.
    """
    top, chosen = scores.topk(num_experts_per_tok, dim=-1)
    return top, chosen
