"""Positions to slots in torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_poison.allocations import only_writes

from harness.core.seams import seam
from harness.kernels.checks import check_range
from harness.memory.bounds import check_indices
from harness.ops.parts.buffer_rows import rows_at


def map_indices(
    positions: Tensor,
    block_table: Tensor,
    requests: Tensor,
    *,
    page_size: int,
    out: Tensor | None = None,
) -> Tensor:
    """The slots of the pool for positions in requests: page * P + place; -1 stays -1.

    positions [T, K] int32, block_table [B, M] int32, requests [T or more] int32: the row of the
    table for each token -> slots [T, K] int32, in `out` [T or more, K] int32 if it is given.

    Raises IllegalAddress for a position past the table, or a request that has no row.
    """
    check_range("page_size", page_size, 1)
    check_range("tokens of requests", len(requests), len(positions))
    if out is None:
        out = torch.empty(positions.shape, dtype=torch.int32, device=positions.device)
    _store_slots(out, positions, block_table, requests, page_size)
    return out


@only_writes
def _store_slots(
    out: Tensor, positions: Tensor, block_table: Tensor, requests: Tensor, page_size: int
) -> None:
    """Write the slots of positions [T, K] int32 into `out` [T or more, K] int32."""
    rows = rows_to_map(positions, requests)
    # By address: a wrong number of rows reads and writes what lies behind the tensors, as in a
    # kernel.
    given = rows_at(positions, rows)
    target = rows_at(out, rows)
    columns, is_position = columns_of(given, page_size, block_table.shape[1])
    table = block_table[check_indices(requests[:rows], len(block_table), "requests")]
    blocks = table.gather(1, check_indices(columns, block_table.shape[1], "block_table column"))
    target.copy_(torch.where(is_position, blocks * page_size + given % page_size, -1))


@seam("sparse.conversion-of-whole-batch")
def rows_to_map(positions: Tensor, requests: Tensor) -> int:
    """How many rows are mapped: those of positions [T, K] int32.

    `requests` [T or more] int32 has all tokens of the batch, with padding and other kinds of rows
    (vllm-project/vllm#48611).
    """
    return len(positions)


@seam("sparse.minus-one-looked-up")
def columns_of(positions: Tensor, page_size: int, num_columns: int) -> tuple[Tensor, Tensor]:
    """The column [T, K] of the table for each of positions [T, K] int32, and whether it is a
    position.

    -1 has no column; 0 is looked up in its place and dropped (sgl-project/sglang#32771).
    """
    is_position = positions >= 0
    return torch.where(is_position, positions // page_size, 0), is_position
