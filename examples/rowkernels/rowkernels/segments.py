"""Reductions over the rows of each segment: segment s is rows offsets[s] to offsets[s + 1] of
offsets [S + 1].
"""

from itertools import pairwise

import torch


def segment_sum(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Sum of each segment's rows: values [N, D], offsets [S + 1] -> [S, D]."""
    sums = torch.empty(len(offsets) - 1, values.shape[1], dtype=values.dtype)
    for segment, (start, stop) in enumerate(_bounds(offsets)):
        sums[segment] = values[start:stop].sum(dim=0)
    return sums


def segment_mean_out(values: torch.Tensor, offsets: torch.Tensor, out: torch.Tensor) -> None:
    """Mean of each segment's rows into `out` [S, D]."""
    for segment, (start, stop) in enumerate(_bounds(offsets)):
        if stop == start:
            continue  # the planted bug: the row of an empty segment, 0 by contract, is never written  # noqa: E501
        out[segment] = values[start:stop].mean(dim=0)


def segment_mean(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Mean of each segment's rows: values [N, D], offsets [S + 1] -> [S, D]; 0 for an empty
    segment.
    """
    means = torch.empty(len(offsets) - 1, values.shape[1], dtype=values.dtype)
    segment_mean_out(values, offsets, means)
    return means


def _bounds(offsets: torch.Tensor) -> list[tuple[int, int]]:
    return list(pairwise(offsets.tolist()))
