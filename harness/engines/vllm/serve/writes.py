"""What the poison of this process writes with, and its count of what it has filled."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from harness.memory.poison.sentinels import bits_view, sentinel_bits

FINITE = 1.0
"""The latent is normalised: a value of this size is what an older owner of a page could have left."""


@dataclass(slots=True)
class Filled:
    """What the poison of this process has filled so far; a run in which it filled nothing proves nothing."""

    steps: int = 0
    sweeps: int = 0
    blocks: int = 0
    context_rows: int = 0


FILLED = Filled()


def worker_rank() -> int:
    """The rank of this worker among all of the server."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK", "0"))


def fill(values: torch.Tensor, pattern: str, site: str, rows: torch.Tensor | slice = slice(None)) -> None:
    """Fill rows of a view with the pattern, all of them where none are named; no element of it is read."""
    if pattern == "nan":
        bits_view(values)[rows] = sentinel_bits(values.dtype, site)
    else:
        values[rows] = FINITE if pattern == "finite" else torch.finfo(values.dtype).max
