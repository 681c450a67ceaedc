"""Facts about a launch for probes: its kernel or function, and its promised rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness.kernels.call import BoundKernel


def kernel_of(launched: Callable[..., Any]) -> BoundKernel | None:
    """The kernel of a launch; None for a function of the engine or an op of torch."""
    owner = getattr(launched, "__self__", None)
    return owner if isinstance(owner, BoundKernel) else None


def name_of(launched: Callable[..., Any]) -> str:
    """The name of a launched function."""
    return str(getattr(launched, "__name__", type(launched).__name__))


def with_context(query_start_loc: torch.Tensor, chunk_start_loc: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """The tokens [T] bool that have keys in a context chunk. A context kernel promises no other row.

    query_start_loc and chunk_start_loc: [B + 1] int32, the offsets of the tokens and keys of B prompts.
    """
    lengths = query_start_loc.diff().long().cpu()
    has_keys = (chunk_start_loc.diff() > 0).cpu()
    rows = torch.repeat_interleave(has_keys, lengths)
    return torch.cat((rows, torch.zeros(num_tokens - rows.shape[0], dtype=torch.bool)))
