"""Faults in the stages before sparse attention: index logits, top-k, slots."""

from __future__ import annotations

import torch
from torch import Tensor

_first_choice: list[Tensor] = []


def choice_of_first(layer: int, selected: Tensor) -> Tensor:
    """Attend to the positions that the first layer chose, though this one has an indexer
    (ROCm/ATOM#1362).

    `selected` [T, K] int32 is what this layer chose.
    """
    # Layers run in order, so the first has written before another one reads.
    _first_choice[:] = _first_choice if layer else [selected]
    return _first_choice[0]


def one_request_more(tables: Tensor) -> Tensor:
    """Count a request more than `tables` [T, M] has rows, as a warm-up did, and give it the last
    token (vllm-project/vllm#55637).

    The result is [T] int32.
    """
    rows = torch.arange(len(tables), dtype=torch.int32, device=tables.device)
    return rows + (rows == len(tables) - 1)
