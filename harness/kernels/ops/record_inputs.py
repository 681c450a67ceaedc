"""Seeded inputs of the ops that write and read records: a byte cache in which other slots hold others' records."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.core.op_params import ReadRecordsParams, RecordParams, WriteRecordsParams
from harness.core.ops import PAGE_SIZE
from harness.kernels.ops.cache_layouts import KV_SCALE
from harness.kernels.ops.inputs import NULL_BLOCK, Inputs, Unowned
from harness.kernels.ops.record_formats import RECORDS, encode, spans, store


@dataclass(slots=True)
class RecordInputs(Inputs):
    """Common to both ops. `storage` [N, L, P, bytes] uint8 holds the blocks of L layers; the op sees the last layer."""

    storage: Tensor
    record_format: str
    scale: float | None

    @property
    def cache(self) -> Tensor:
        """The cache [N, P, bytes] of the last layer. Its blocks are L blocks apart."""
        return self.storage[:, -1]


@dataclass(slots=True)
class WriteRecordsInputs(RecordInputs):
    """Arguments of `write_records`; the last entries of `slot_mapping` are -1."""

    x: Tensor
    slot_mapping: Tensor


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
        return self.block_table[request, position // PAGE_SIZE].long() * PAGE_SIZE + position % PAGE_SIZE


def write_records(params: WriteRecordsParams, seed: int) -> WriteRecordsInputs:
    """Tokens for scattered slots, which nothing has written yet, in blocks that hold records of others."""
    generator = torch.Generator().manual_seed(seed)
    num_pages = 2 + -(-params.num_tokens // PAGE_SIZE)
    storage, scale = _storage(params, 1 + num_pages + 1, generator)
    slots = PAGE_SIZE + torch.randperm(num_pages * PAGE_SIZE, generator=generator)[: params.num_tokens]
    x = _rows(params, params.num_tokens + params.num_padded, generator)
    cache = storage[:, -1]
    return WriteRecordsInputs(
        storage,
        params.kv,
        scale,
        x=x,
        slot_mapping=torch.cat((slots, torch.full((params.num_padded,), -1, dtype=torch.int64))),
        unowned=[
            Unowned("kv.null", cache[NULL_BLOCK]),
            Unowned("kv.free", cache[-1]),
            *(Unowned("kv.new", span) for span in spans(cache, slots, params.kv)),
            Unowned("graph.pad_rows", x[params.num_tokens :]),
        ],
    )


def read_records(params: ReadRecordsParams, seed: int) -> ReadRecordsInputs:
    """Requests with scattered pages; their unused slots, and all pages of others, are unowned."""
    generator = torch.Generator().manual_seed(seed)
    pages = [-(-length // PAGE_SIZE) for length in params.seq_lens]
    num_blocks = 1 + sum(pages) + 2
    storage, scale = _storage(params, num_blocks, generator)
    cache = storage[:, -1]
    order = (1 + torch.randperm(num_blocks - 1, generator=generator)).to(torch.int32)
    table = torch.zeros(len(pages), max(pages) + 1, dtype=torch.int32)
    unowned = [Unowned("kv.null", cache[NULL_BLOCK])]
    used = 0
    for b, (length, count) in enumerate(zip(params.seq_lens, pages, strict=True)):
        table[b, :count] = order[used : used + count]
        used += count
        unowned.append(Unowned("block_table.pad", table[b, count:]))
        if length % PAGE_SIZE:
            tail = int(table[b, count - 1]) * PAGE_SIZE + torch.arange(length % PAGE_SIZE, PAGE_SIZE)
            unowned += [Unowned("kv.tail", span) for span in spans(cache, tail, params.kv)]
    unowned += [Unowned("kv.free", cache[int(block)]) for block in order[used:]]
    starts = torch.tensor([0, *params.seq_lens]).cumsum(0).to(torch.int32)
    return ReadRecordsInputs(storage, params.kv, scale, block_table=table, cu_seq_lens=starts, unowned=unowned)


def _storage(params: RecordParams, num_blocks: int, generator: torch.Generator) -> tuple[Tensor, float | None]:
    """Blocks [N, L, P, bytes] full of records, and the scale of the whole cache, if the format has one."""
    form = RECORDS[params.kv]
    scale = KV_SCALE if form.is_scaled else None
    storage = torch.empty(num_blocks, params.layers, PAGE_SIZE, form.num_bytes, dtype=torch.uint8)
    slots = torch.arange(num_blocks * PAGE_SIZE)
    for layer in range(params.layers):
        store(encode(_rows(params, len(slots), generator), params.kv, scale), storage[:, layer], slots, params.kv)
    return storage, scale


def _rows(params: RecordParams, num_rows: int, generator: torch.Generator) -> Tensor:
    """Rows [T, W] bfloat16. Their sizes differ by powers of two, so that the scale of another row shows."""
    sizes = torch.exp2(torch.randint(-2, 3, (num_rows, 1), generator=generator).float())
    if RECORDS[params.kv].quantized and not RECORDS[params.kv].group:
        sizes = torch.ones(num_rows, 1)
    return (sizes * torch.randn(num_rows, RECORDS[params.kv].width, generator=generator)).to(torch.bfloat16)
