"""Pages of requests, their slots, and the positions that each row of logits sees."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from harness.core.ops import PAGE_SIZE
from harness.ops.parts.inputs import Unowned


@dataclass(slots=True)
class Pages:
    """Pages scattered over a pool: the table [B, M] with its padding, the pages of no request, the
    padded entries.
    """

    table: Tensor
    free: Tensor
    pads: list[Unowned] = field(default_factory=list)


def lengths_of_rows(seq_lens: Tensor, num_tokens: int) -> Tensor:
    """The positions [B * S] int64 that each of S query tokens sees, for requests of lengths
    seq_lens [B].
    """
    return (
        (seq_lens.long()[:, None] - num_tokens + 1 + torch.arange(num_tokens))
        .clamp(min=0)
        .flatten()
    )


def slots_of(block_row: Tensor, count: int) -> Tensor:
    """The first `count` slots [count] int64 of a request with the pages `block_row` [M]."""
    positions = torch.arange(count)
    return block_row.long()[positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE


def drawn_pages(
    lengths: tuple[int, ...], pad: int, generator: torch.Generator, spare: int = 0
) -> Pages:
    counts = [-(-length // PAGE_SIZE) for length in lengths]
    # Block 0 is the null block.
    order = 1 + torch.randperm(sum(counts) + spare, generator=generator)
    *owned, free = torch.split(order, [*counts, spare])
    pages = Pages(torch.zeros(len(lengths), max(counts) + pad, dtype=torch.int32), free)
    for b, blocks in enumerate(owned):
        pages.table[b, : len(blocks)] = blocks.to(torch.int32)
        pages.pads.append(Unowned("block_table.pad", pages.table[b, len(blocks) :]))
    return pages
