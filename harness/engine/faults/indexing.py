"""Faults in the stages before sparse attention: index logits, top-k, slots."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.engine.batch import PrefillRequest

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


_scores_before: list[Tensor] = []


def added_to_layers_before(layer: int, logits: Tensor) -> Tensor:
    """Add the scores [T, M * P] float32 of a layer to those of the layers before it
    (ikawrakow/ik_llama.cpp#2069).
    """
    _scores_before[:] = [_scores_before[0] + logits if layer else logits]
    return _scores_before[0]


def halves_for_pairs(keys: Tensor) -> Tensor:
    """Put channel i of keys [T, I] float32 beside channel i + I / 2, as the queries do not
    (ikawrakow/ik_llama.cpp#2099).
    """
    first, second = keys.chunk(2, dim=-1)
    return torch.stack((first, second), dim=-1).flatten(-2)


def whole_prompt_if_short(request: PrefillRequest, positions: Tensor, topk: int) -> Tensor:
    """Let each token of a prompt of at most `topk` see all of it (osaurus-ai/vmlx-swift#429).

    `positions` and the result are [S] int64.
    """
    length = request.context_len + request.end - request.start
    return torch.full_like(positions, length) if length <= topk else positions + 1


def as_many_as_the_chunk(request: PrefillRequest, positions: Tensor, topk: int) -> Tensor:
    """Count the tokens of the chunk up to each (hw-native-sys/pypto-lib#592).

    `positions` and the result are [S] int64.
    """
    return positions + 1 - request.context_len
