"""How the poison of this process writes, and its counts."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch_poison.patterns import bits_view, sentinel_bits

FINITE = 1.0
"""Latents are normalized, so an earlier owner of a page leaves values of this size."""


@dataclass(slots=True)
class Filled:
    """What the poison of this process has filled so far.

    A run in which it filled nothing proves nothing.
    """

    steps: int = 0
    sweeps: int = 0
    allocations: int = 0
    """Allocations of torch on a CPU, which has no free blocks to sweep."""
    blocks: int = 0
    workspaces: int = 0
    context_rows: int = 0
    topk_buffers: int = 0
    segments: int = 0
    """Fills between segments of breakable graphs."""
    copies: int = 0
    """Copies from pinned memory that were watched."""


FILLED = Filled()


def worker_rank() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK", "0"))


def fill(
    values: torch.Tensor, pattern: str, site: str, rows: torch.Tensor | slice = slice(None)
) -> None:
    """Fill rows [n] int64, by default all, of values [rows, ...] of any float dtype or float8 with
    the pattern. No element is read.
    """
    if pattern == "nan":
        bits_view(values)[rows] = sentinel_bits(values.dtype, site)
    else:
        values[rows] = FINITE if pattern == "finite" else torch.finfo(values.dtype).max
