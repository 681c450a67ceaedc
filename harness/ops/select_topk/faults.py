"""Known bugs of kernels of `select_topk`, which are injected on purpose."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

_launches = itertools.count()


def topk_by_threshold(logits: Tensor, lengths: Tensor, before: Tensor) -> Tensor:
    """Choose the logits [T, N] float32 that are at least as large as the K-th largest, with
    unwritten logits among them.

    No logit reaches a threshold of NaN, so that positions stay as they were in `before` [T, K]
    int32 (vllm-project/vllm#49896). lengths [T] int32, in keys.
    """
    out = before.clone()
    topk = before.shape[1]
    thresholds = logits.topk(min(topk, logits.shape[1]), dim=-1).values[:, -1:]
    places = torch.arange(logits.shape[1], device=logits.device)
    for row, reached in enumerate((logits >= thresholds) & (places < lengths[:, None])):
        chosen = places[reached][:topk]
        out[row, : len(chosen)] = chosen.to(torch.int32)
    return out


def topk_by_arrival(logits: Tensor, lengths: Tensor, before: Tensor) -> Tensor:
    """Choose among equal logits [T, N] float32 in the order of arrival, another one in each launch
    (sgl-project/sglang#31115).

    lengths [T] int32, before [T, K] int32, only its shape -> positions [T, K] int32 that are a
    right choice all the same.
    """
    generator = torch.Generator().manual_seed(next(_launches))
    order = torch.randperm(logits.shape[1], generator=generator).to(logits.device)
    masked = logits.masked_fill(
        torch.arange(logits.shape[1], device=logits.device) >= lengths[:, None], -torch.inf
    )
    best = order[
        masked[:, order].sort(dim=-1, descending=True, stable=True).indices[:, : before.shape[1]]
    ]
    out = torch.full_like(before, -1)
    out[:, : best.shape[1]] = torch.where(best < lengths[:, None], best, -1).to(torch.int32)
    return out


def rows_of_batch_width(out: Tensor, rows: Tensor, lengths: Tensor) -> None:
    """Store `rows` [T, K] int32 one behind the other in out [T, K] int32, each as wide as the
    longest row of the batch (vllm-project/vllm#51318).

    lengths [T] int32 are the keys of each row.
    """
    width = min(out.shape[1], max(1, int(lengths.max())))
    out.as_strided((len(rows), width), (width, 1)).copy_(rows[:, :width])
