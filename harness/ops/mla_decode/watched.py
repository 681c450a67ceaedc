"""What the first-NaN recorder scans of the cache of a call of `mla_decode`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def cache_rows(args: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """The slots of the cache that a call with these arguments reads: [B, M * P, D] twice, zeros
    elsewhere, in the type of the cache, float32 for float8_e4m3fn.

    The first has the slots that a query sees, the second the slots of the last page past the
    length.
    """
    q, cache, table, seq_lens = args[:4]
    window = keywords.get("window")
    # Padded entries may name no page. They read some page, and the masks below drop it.
    page_size = cache.shape[1]
    pages = table.long().clamp(0, cache.shape[0] - 1)
    wide = cache.float() if cache.dtype == torch.float8_e4m3fn else cache
    rows = wide[pages].flatten(1, 2)
    lengths = seq_lens[:, None]
    position = torch.arange(rows.shape[1])
    first = torch.zeros_like(lengths) if window is None else lengths - window - q.shape[1] + 1
    in_use = ((position < lengths) & (position >= first))[..., None]
    # Table entries past the last page name no page of the request.
    past = ((position >= lengths) & (position < -(-lengths // page_size) * page_size))[..., None]
    nothing = torch.zeros_like(rows)
    return torch.where(in_use, rows, nothing), torch.where(past, rows, nothing)
