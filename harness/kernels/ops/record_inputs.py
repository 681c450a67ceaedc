"""Seeded inputs of the ops that write and read records: a byte cache in which other slots hold
others' records.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.core.op_params import ReadRecordsParams, RecordParams, WriteRecordsParams
from harness.core.ops import PAGE_SIZE
from harness.kernels.ops import decode_conditions, row_conditions
from harness.kernels.ops.cache_layouts import KV_SCALE
from harness.kernels.ops.inputs import NULL_BLOCK, Inputs, Unowned, padding
from harness.kernels.ops.record_formats import RECORDS, encode, spans, store

TINY = 2.0**-8
"""What a tiny row is multiplied by: the scale of 16 of its elements is still a normal number of
e4m3.
"""


@dataclass(slots=True)
class RecordInputs(Inputs):
    """Common to both ops.

    `storage` [N, L, P, bytes] uint8 holds the blocks of L layers; the op sees the last layer.
    """

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
        return (
            self.block_table[request, position // PAGE_SIZE].long() * PAGE_SIZE
            + position % PAGE_SIZE
        )


def write_records(params: WriteRecordsParams, seed: int) -> WriteRecordsInputs:
    """Tokens for scattered slots, which nothing has written yet, in blocks that hold records of
    others.
    """
    generator = torch.Generator().manual_seed(seed)
    num_pages = 2 + -(-params.num_tokens // PAGE_SIZE)
    first_page = 1 + params.high_blocks
    storage, scale = _storage(params, first_page + num_pages + 1, generator)
    slots = row_conditions.ordered_slots(params.num_tokens, num_pages, params.slot_order, generator)
    slots += first_page * PAGE_SIZE
    x = _rows(params, params.num_tokens + params.num_padded, generator)
    # A scale of the whole cache leaves nothing of tiny rows.
    has_scales = bool(RECORDS[params.kv].group) or not RECORDS[params.kv].quantized
    row_conditions.resize_rows(x, params.values, TINY if has_scales else 1.0)
    is_padded = row_conditions.padded_rows(len(x), params.num_padded, params.padded_at)
    cache = storage[:, -1]
    return WriteRecordsInputs(
        storage,
        params.kv,
        scale,
        x=x,
        slot_mapping=row_conditions.slot_mapping(slots, is_padded),
        unowned=[
            Unowned("kv.null", cache[NULL_BLOCK]),
            Unowned("kv.free", cache[-1]),
            *(Unowned("kv.new", span) for span in spans(cache, slots, params.kv)),
            *(Unowned("graph.pad_rows", part) for part in padding(x, is_padded)),
        ],
    )


def read_records(params: ReadRecordsParams, seed: int) -> ReadRecordsInputs:
    """Requests with scattered pages; their unused slots, and all pages of others, are unowned."""
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-length // PAGE_SIZE) for length in params.seq_lens]
    num_blocks = 1 + sum(counts) + 2
    storage, scale = _storage(params, num_blocks + params.high_blocks, generator)
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


def _storage(
    params: RecordParams, num_blocks: int, generator: torch.Generator
) -> tuple[Tensor, float | None]:
    """Blocks [N, L, P, bytes] full of records, and the scale of the whole cache, if the format has
    one.
    """
    form = RECORDS[params.kv]
    scale = KV_SCALE if form.is_scaled else None
    storage = torch.zeros(num_blocks, params.layers, PAGE_SIZE, form.num_bytes, dtype=torch.uint8)
    slots = torch.arange((num_blocks - params.high_blocks) * PAGE_SIZE)
    # Between the null block and the blocks of the call, records are zeros.
    places = slots + (slots >= PAGE_SIZE) * params.high_blocks * PAGE_SIZE
    for layer in range(params.layers):
        store(
            encode(_rows(params, len(slots), generator), params.kv, scale),
            storage[:, layer],
            places,
            params.kv,
        )
    return storage, scale


def _rows(params: RecordParams, num_rows: int, generator: torch.Generator) -> Tensor:
    """Rows [T, W] bfloat16.

    Their sizes differ by powers of two, so that the scale of another row shows.
    """
    sizes = torch.exp2(torch.randint(-2, 3, (num_rows, 1), generator=generator).float())
    if RECORDS[params.kv].quantized and not RECORDS[params.kv].group:
        sizes = torch.ones(num_rows, 1)
    return (sizes * torch.randn(num_rows, RECORDS[params.kv].width, generator=generator)).to(
        torch.bfloat16
    )
