"""`map_indices` in Triton: positions of a token's request as slots of the pool, -1 kept."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness.kernels.checks import check_dense, check_range
from harness.memory.bounds import check_indices
from harness.memory.triton_interpreter import prepare

INTERPRETED = prepare()


@triton.jit
def _map(
    positions, block_table, requests, out, num_pages, width, page_size, stride_position,
    stride_table, stride_out,
    BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    position = tl.load(positions + token * stride_position + lane, mask=lane < width, other=-1)
    page = position // page_size
    # In C, -1 // page_size is 0, a live page, so the sign is judged before the division is used.
    found = (position >= 0) & (page < num_pages)
    row = block_table + tl.load(requests + token).to(tl.int64) * stride_table
    block = tl.load(row + page, mask=found, other=0)
    slot = tl.where(found, block * page_size + position % page_size, -1)
    tl.store(out + token * stride_out + lane, slot, mask=lane < width)


def map_indices(
    positions: Tensor,
    block_table: Tensor,
    requests: Tensor,
    *,
    page_size: int,
    out: Tensor | None = None,
) -> Tensor:
    """As :func:`harness.ops.map_indices.kernels.dense.map_indices`; a position past the table gives
    -1.

    positions [T, K] int32, block_table [B, M] int32, requests [T or more] int32 -> slots [T, K]
    int32, in `out` [T or more, K] int32 if it is given. Raises ValueError for a last dimension that
    is not dense.
    """
    rows, width = positions.shape
    check_range("page_size", page_size, 1)
    check_range("tokens of requests", len(requests), rows)
    for name, tensor in (
        ("positions", positions),
        ("block_table", block_table),
        ("requests", requests),
    ):
        check_dense(name, tensor, is_index=True)
    if INTERPRETED:
        # A GPU would fault; the interpreter would read the host's memory unseen.
        check_indices(requests[:rows], len(block_table), "requests")
    slots = (
        torch.empty(positions.shape, dtype=torch.int32, device=positions.device)
        if out is None
        else out
    )
    if rows:
        block = min(128, triton.next_power_of_2(width))
        _map[(rows, triton.cdiv(width, block))](
            positions,
            block_table,
            requests,
            slots,
            block_table.shape[1],
            width,
            page_size,
            positions.stride(0),
            block_table.stride(0),
            slots.stride(0),
            BLOCK=block,
        )
    return slots
