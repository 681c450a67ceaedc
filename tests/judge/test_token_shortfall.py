"""The shortfall of a sparse layer's choice is in units of the scores of its row."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from harness.judge.dense_reference import visible_tokens


def attention(scores: Tensor) -> Any:
    """What `visible_tokens` asks of a sparse layer with the scores [1, T, T], which chooses two
    tokens.
    """
    causal = torch.ones_like(scores[0]).tril().bool()
    best = torch.zeros_like(scores).bool()
    best.scatter_(-1, scores.masked_fill(~causal, -torch.inf).topk(2, dim=-1).indices, True)
    indexer = SimpleNamespace(keys=lambda x: x, scores=lambda x, keys: scores)
    return SimpleNamespace(indexer=indexer, visible=lambda x: best & causal)


def below(factor: float) -> float:
    """The shortfall of a query that takes its third token for its second, with scores `factor`
    times 3, 1, 0.8, 0.
    """
    scores = torch.tensor([3.0, 1.0, 0.8, 0.0]).expand(1, 4, 4) * factor
    seen = torch.tensor([[[0, -1], [0, 1], [0, 1], [0, 2]]])
    visible, found = visible_tokens(attention(scores), torch.zeros(1, 4, 1), seen, 0.15)
    assert visible[0, 3].tolist() == (
        [True, False, True, False] if found[0, 3] <= 0.15 else [True, True, False, False]
    )
    return float(found[0, 3])


def test_a_shortfall_grows_with_scores_up_to_their_unit_and_not_beyond() -> None:
    assert abs(below(0.1) - 0.02) < 1e-6
    scale = (torch.tensor([3.0, 1.0, 0.8, 0.0]).square().mean()).sqrt()
    assert abs(below(1.0) - 0.2 / float(scale)) < 1e-6 and abs(below(10.0) - below(1.0)) < 1e-6
