"""The reference of `route_experts`."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Routed(NamedTuple):
    """Expert ids [T, k] int64 in ascending order, and their weights [T, k] float64."""

    ids: Tensor
    weights: Tensor


def expected(logits: Tensor, num_experts_per_tok: int) -> Routed:
    """The k experts with the largest of logits [T, X], by ascending id, with softmax weights [T, k]
    that sum to 1.

    logits is float32, ids int64, weights float64.
    """
    scores = logits.double().softmax(dim=-1)
    ids = scores.topk(num_experts_per_tok, dim=-1).indices.sort(dim=-1).values
    weights = scores.gather(1, ids)
    return Routed(ids, weights / weights.sum(dim=-1, keepdim=True))
