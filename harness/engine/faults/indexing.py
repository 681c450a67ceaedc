"""Faults in the stages before sparse attention: index logits, top-k, slots."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from harness.kernels.torch.index import SCALE_BYTES, WORKERS

_launches = itertools.count()
_first_choice: list[Tensor] = []


def topk_by_threshold(logits: Tensor, lengths: Tensor, before: Tensor) -> Tensor:
    """Choose the logits [T, N] that are at least as large as the K-th largest, with unwritten
    logits among them.

    No logit reaches a threshold of NaN, so that positions [T, K] stay as they were `before` (PR
    49896).
    """
    out, topk = before.clone(), before.shape[1]
    thresholds = logits.topk(min(topk, logits.shape[1]), dim=-1).values[:, -1:]
    places = torch.arange(logits.shape[1], device=logits.device)
    for row, reached in enumerate((logits >= thresholds) & (places < lengths[:, None])):
        chosen = places[reached][:topk]
        out[row, : len(chosen)] = chosen.to(torch.int32)
    return out


def topk_by_arrival(logits: Tensor, lengths: Tensor, before: Tensor) -> Tensor:
    """Choose among equal logits [T, N] in the order of arrival, another one in each launch
    (sgl-project/sglang#31115): K positions [T, K] int32 that are a right choice all the same.
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
    """Store rows [T, K] one behind the other, each as wide as the longest row of the batch (PR
    51318).
    """
    width = min(out.shape[1], max(1, int(lengths.max())))
    out.as_strided((len(rows), width), (width, 1)).copy_(rows[:, :width])


def every_token(positions: Tensor, requests: Tensor) -> int:
    """A row for each token of the batch, requests [T or more] (PR 48611)."""
    return len(requests)


def columns_from_the_end(
    positions: Tensor, page_size: int, num_columns: int
) -> tuple[Tensor, Tensor]:
    """Look up -1 among positions [T, K] as the last entry of the row (sgl-project/sglang#32771)."""
    return positions.div(page_size, rounding_mode="floor") % num_columns, torch.ones_like(
        positions, dtype=torch.bool
    )


def scales_of_first_layer(kv_cache: Tensor) -> Tensor:
    """The scales [N, P] float32 at an offset from the start of the memory, where layer 0 lies
    (ROCm/ATOM#1466).
    """
    num_blocks, page_size, size = kv_cache.shape
    shape, start = (num_blocks, page_size * SCALE_BYTES), page_size * (size - SCALE_BYTES)
    return kv_cache.as_strided(shape, (kv_cache.stride(0), 1), start).view(torch.float32)


def offsets_by_size(kv_cache: Tensor, blocks: Tensor) -> Tensor:
    """Form offsets of blocks [B, M] in 32 bits where the cache has fewer elements than 2^31
    (ROCm/aiter#4673).

    One that wraps below the cache reads zeros, one above it a wrong block.
    """
    if kv_cache.numel() >= 2**31:
        return kv_cache[blocks]
    offsets = (blocks * kv_cache.stride(0) + 2**31) % 2**32 - 2**31
    found = offsets.div(kv_cache.stride(0), rounding_mode="floor")
    is_inside = (found >= 0) & (found < len(kv_cache))
    return kv_cache[torch.where(is_inside, found, 0)].masked_fill(~is_inside[..., None, None], 0)


def pages_of_larger_blocks(kv_cache: Tensor, blocks: Tensor) -> Tensor:
    """Read blocks [B, M] at four times their number, all inside the pool
    (NVIDIA/TensorRT-LLM#16219).
    """
    return kv_cache[blocks * 4 % len(kv_cache)]


def choice_of_first(layer: int, selected: Tensor) -> Tensor:
    """Attend to the positions [T, K] that the first layer chose, though this one has an indexer
    (ROCm/ATOM#1362).
    """
    _first_choice[:] = _first_choice if layer else [selected]
    return _first_choice[0]


def one_request_more(tables: Tensor) -> Tensor:
    """Count a request more than `tables` [T, M] has rows, as a warm-up did, and give it the last
    token (PR 55637).
    """
    rows = torch.arange(len(tables), dtype=torch.int32, device=tables.device)
    return rows + (rows == len(tables) - 1)


def unguarded_search(counts: Tensor) -> Tensor:
    """Search the request of each worker in counts [B] of pages; without a page, past the end
    (DeepGEMM 353).
    """
    ends = counts.cumsum(0)
    return torch.searchsorted(
        ends, torch.arange(WORKERS, device=counts.device) * ends[-1] // WORKERS, right=True
    )
