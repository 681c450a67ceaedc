"""Seeded inputs of `read_records`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.core.ops import PAGE_SIZE
from harness.ops.parts import decode_conditions, records
from harness.ops.parts.inputs import NULL_BLOCK, Unowned
from harness.ops.parts.record_formats import spans
from harness.ops.parts.records import RecordInputs
from harness.ops.read_records.params import ReadRecordsParams


@dataclass(slots=True)
class ReadRecordsInputs(RecordInputs):
    """Arguments of `read_records`."""

    block_table: Tensor
    cu_seq_lens: Tensor

    def slots(self) -> Tensor:
        """The slot of each token, one request after another: [T] int64."""
        lengths = self.cu_seq_lens.diff().long()
        request = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        position = torch.arange(len(request)) - self.cu_seq_lens[request]
        return (
            self.block_table[request, position // PAGE_SIZE].long() * PAGE_SIZE
            + position % PAGE_SIZE
        )


def draw(params: ReadRecordsParams, seed: int) -> ReadRecordsInputs:
    """Requests with scattered pages; their unused slots, and all pages of others, are unowned."""
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-length // PAGE_SIZE) for length in params.seq_lens]
    # The null block, the requests' pages, and two of no request.
    num_blocks = 1 + sum(counts) + 2
    storage, scale = records.drawn_storage(params, num_blocks + params.high_blocks, generator)
    cache = storage[:, -1]
    order = 1 + params.high_blocks + torch.randperm(num_blocks - 1, generator=generator)
    pages = [part.tolist() for part in order[: sum(counts)].split_with_sizes(counts)]
    if params.page_order:
        pages = decode_conditions.arranged(pages, params.page_order)
    used = decode_conditions.slots_used(pages, params.seq_lens)
    table = torch.zeros(len(pages), max(counts) + params.table_pad, dtype=torch.int32)
    unowned = [Unowned("kv.null", cache[NULL_BLOCK])]
    for b, own in enumerate(pages):
        table[b, : len(own)] = torch.tensor(own, dtype=torch.int32)
        unowned.append(Unowned("block_table.pad", table[b, len(own) :]))
    for page, count in used.items():
        if count < PAGE_SIZE:
            tail = page * PAGE_SIZE + torch.arange(count, PAGE_SIZE)
            unowned += [Unowned("kv.tail", span) for span in spans(cache, tail, params.kv)]
    unowned += [Unowned("kv.free", cache[block]) for block in order.tolist() if block not in used]
    starts = torch.tensor([0, *params.seq_lens]).cumsum(0).to(torch.int32)
    return ReadRecordsInputs(
        storage, params.kv, scale, block_table=table, cu_seq_lens=starts, unowned=unowned
    )
