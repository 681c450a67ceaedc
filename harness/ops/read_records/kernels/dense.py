"""Reading records in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.kernels.checks import check_range, check_rising
from harness.memory.bounds import check_indices
from harness.ops.parts.record_views import decoded, record_views


def read_records(
    cache: Tensor,
    block_table: Tensor,
    cu_seq_lens: Tensor,
    *,
    record_format: str,
    scale: float | None = None,
) -> Tensor:
    """The rows [T, W] float32 of all requests, one after another.

    cache: [N, P, bytes] uint8, block_table: [B, M] int32, cu_seq_lens: [B + 1] int32. Reads the
    number of tokens on the host. Raises IllegalAddress for a page of a live token past the cache.
    """
    page_size = cache.shape[1]
    check_range("requests of block_table", len(block_table), len(cu_seq_lens) - 1)
    check_rising("cu_seq_lens", cu_seq_lens.tolist())
    lengths = cu_seq_lens.diff().long()
    request = torch.repeat_interleave(torch.arange(len(lengths), device=cache.device), lengths)
    position = torch.arange(len(request), device=cache.device) - cu_seq_lens[request]
    column = check_indices(position // page_size, block_table.shape[1], "block_table column")
    block = check_indices(block_table[request, column], cache.shape[0], "block_table")
    offset = position % page_size
    parts = []
    for view in record_views(cache, record_format):
        tile = view.shape[2]
        parts.append(view[block, offset // tile, offset % tile].flatten(1))
    rows = decoded(parts, record_format, scale)
    out = torch.empty(rows.shape, dtype=torch.float32, device=cache.device)
    return out.copy_(rows)
