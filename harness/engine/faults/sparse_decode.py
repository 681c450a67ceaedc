"""Faults of sparse attention: token lists with positions that were not chosen."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.kernels.torch.decode import gather_slots
from harness.memory.bounds import check_indices
from harness.memory.poison.patterns import Poison


def load_clamped(kv_cache: Tensor, indices: Tensor, chosen: Tensor) -> Tensor:
    """Load slot 0 for an index of -1 and trust the mask of the scores (PR 57156)."""
    slots = check_indices(indices.clamp(min=0), kv_cache.shape[0] * kv_cache.shape[1], "indices")
    return gather_slots(kv_cache, slots)


def topk_by_threshold(logits: Tensor, lengths: Tensor, topk: int, poison: Poison) -> Tensor:
    """Choose the logits that are at least as large as the K-th largest, with unwritten logits among them.

    No logit reaches a threshold of NaN, so that positions stay unwritten (PR 49896).
    """
    out = poison.empty(logits.shape[0], topk, dtype=torch.int32, site="sparse.topk", device=logits.device)
    thresholds = logits.topk(min(topk, logits.shape[1]), dim=-1).values[:, -1:]
    is_token = torch.arange(logits.shape[1], device=logits.device) < lengths[:, None]
    for row, reached in enumerate((logits >= thresholds) & is_token):
        chosen = reached.nonzero().flatten()[:topk]
        out[row, : len(chosen)] = chosen.to(torch.int32)
    return out


def store_whole_tiles(selected: Tensor, tiles: Tensor, num_decode_tokens: int) -> None:
    """Store the rows of padding of the last tile too, over the first rows of prompts (PR 32175)."""
    rows = min(len(selected), len(tiles))
    selected[:rows] = tiles[:rows]
