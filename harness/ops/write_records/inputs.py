"""Seeded inputs of `write_records`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.core.ops import PAGE_SIZE
from harness.ops.parts import records, row_conditions
from harness.ops.parts.inputs import NULL_BLOCK, Unowned, padding
from harness.ops.parts.record_formats import RECORDS, spans
from harness.ops.parts.records import TINY, RecordInputs, drawn_rows
from harness.ops.write_records.params import WriteRecordsParams


@dataclass(slots=True)
class WriteRecordsInputs(RecordInputs):
    """Arguments of `write_records`; the last entries of `slot_mapping` are -1."""

    x: Tensor
    slot_mapping: Tensor


def draw(params: WriteRecordsParams, seed: int) -> WriteRecordsInputs:
    """Tokens for scattered slots, which nothing has written yet, in blocks that hold records of
    others.
    """
    generator = torch.Generator().manual_seed(seed)
    num_pages = 2 + -(-params.num_tokens // PAGE_SIZE)
    first_page = 1 + params.high_blocks
    storage, scale = records.drawn_storage(params, first_page + num_pages + 1, generator)
    slots = row_conditions.ordered_slots(params.num_tokens, num_pages, params.slot_order, generator)
    slots += first_page * PAGE_SIZE
    x = drawn_rows(params, params.num_tokens + params.num_padded, generator)
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
            # A page that no token of the call reaches.
            Unowned("kv.free", cache[-1]),
            *(Unowned("kv.new", span) for span in spans(cache, slots, params.kv)),
            *(Unowned("graph.pad_rows", part) for part in padding(x, is_padded)),
        ],
    )
