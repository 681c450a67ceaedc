"""Seeded inputs of `map_indices`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.core.ops import PAGE_SIZE
from harness.ops.map_indices.params import MapIndicesParams
from harness.ops.parts.inputs import OpInputs, Unowned
from harness.ops.parts.pages import drawn_pages


@dataclass(slots=True)
class MapInputs(OpInputs):
    """Arguments of `map_indices`, and the buffer [T + later tokens, K] that begins with the rows of
    `out`.
    """

    positions: Tensor
    block_table: Tensor
    requests: Tensor
    page_size: int
    buffer: Tensor
    trap_block: int


def draw(params: MapIndicesParams, seed: int) -> MapInputs:
    """Positions below the length of each token's request, and -1; rows of the buffers past the
    tokens are unowned.
    """
    generator = torch.Generator().manual_seed(seed)
    pages = drawn_pages(params.seq_lens, params.table_pad, generator)
    live = pages.table > 0
    # No cache belongs to this call, so blocks of high numbers cost no memory.
    pages.table[live] += params.high_blocks
    owners = torch.arange(len(params.seq_lens), dtype=torch.int32).repeat_interleave(
        params.query_len
    )
    rows = len(owners)
    later = torch.randint(
        len(params.seq_lens), (params.later_tokens,), generator=generator, dtype=torch.int32
    )
    positions = torch.full((rows + params.later_tokens, params.topk), -1, dtype=torch.int32)
    for row, owner in enumerate(owners.tolist()):
        length = params.seq_lens[owner]
        count = min(length, params.topk)
        # A full list, a list without any position, one position, and most of a list, in turn by
        # rows.
        count = (count, max(0, count - 3), min(1, count))[row % 3]
        lanes = (
            torch.randperm(params.topk, generator=generator)[:count]
            if params.missing == "scattered"
            else slice(count)
        )
        positions[row, lanes] = torch.randperm(max(length, 1), generator=generator)[:count].to(
            torch.int32
        )
    buffer = torch.zeros_like(positions)
    return MapInputs(
        positions=positions[:rows],
        block_table=pages.table,
        requests=torch.cat((owners, later)),
        page_size=PAGE_SIZE,
        buffer=buffer,
        trap_block=params.high_blocks + 1 + int(live.sum()),
        unowned=[
            Unowned("sparse.topk", positions[rows:]),
            Unowned("sparse.topk", buffer),
            *pages.pads,
        ],
    )
