"""Seeded inputs of `index_logits`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.core.ops import PAGE_SIZE
from harness.ops.index_logits.params import IndexLogitsParams
from harness.ops.parts import cache_layouts
from harness.ops.parts.inputs import NULL_BLOCK, CacheInputs, Unowned
from harness.ops.parts.pages import drawn_pages, slots_of
from harness.ops.parts.record_formats import RECORDS, encode, spans, store

PLANAR = "indexer_planar"


@dataclass(slots=True)
class LogitInputs(CacheInputs):
    """Arguments of `index_logits`.

    Block 0 is the null block, the last one the trap that padded entries may name.
    """

    q: Tensor
    weights: Tensor
    block_table: Tensor
    seq_lens: Tensor
    trap_block: int


def draw(params: IndexLogitsParams, seed: int) -> LogitInputs:
    """Requests with keys in scattered pages; their unused slots and all other pages are unowned."""
    generator = torch.Generator().manual_seed(seed)
    pages = drawn_pages(params.seq_lens, params.table_pad, generator, spare=2)
    num_blocks = 2 + int(pages.table.ne(0).sum()) + len(pages.free)
    is_packed = params.kv == PLANAR
    dtype = torch.uint8 if is_packed else cache_layouts.KV_DTYPES[params.kv]
    size = RECORDS[PLANAR].num_bytes if is_packed else params.index_head_dim
    cache = cache_layouts.empty_cache(num_blocks, size, dtype, params.layout, params.page_stride)
    unowned = [
        Unowned("kv.null", cache[NULL_BLOCK]),
        Unowned("block_table.pad", cache[-1]),
        *pages.pads,
    ]
    unowned += [Unowned("kv.free", cache[int(block)]) for block in pages.free]
    for b, length in enumerate(params.seq_lens):
        if not length:
            continue
        slots = slots_of(pages.table[b], length)
        keys = torch.randn(length, params.index_head_dim, generator=generator)
        tail = slots_of(pages.table[b], -(-length // PAGE_SIZE) * PAGE_SIZE)[length:]
        if is_packed:
            store(encode(keys, PLANAR), cache, slots, PLANAR)
            unowned += [Unowned("kv.tail", span) for span in spans(cache, tail, PLANAR)]
        else:
            cache[slots // PAGE_SIZE, slots % PAGE_SIZE] = keys.to(dtype)
            if len(tail):
                unowned.append(
                    Unowned("kv.tail", cache[int(tail[0]) // PAGE_SIZE, int(tail[0]) % PAGE_SIZE :])
                )
    beside = cache_layouts.neighbors(cache, params.layout).values()
    shape = (len(params.seq_lens), params.query_len, params.num_heads)
    q = torch.randn(*shape, params.index_head_dim, generator=generator)
    return LogitInputs(
        q=q.to(torch.float8_e4m3fn if is_packed else dtype),
        # As DeepSeek-V3.2 folds them into the weights: heads^-0.5 and width^-0.5.
        weights=torch.randn(shape, generator=generator)
        * (params.num_heads * params.index_head_dim) ** -0.5,
        kv_cache=cache,
        block_table=pages.table,
        seq_lens=torch.tensor(params.seq_lens, dtype=torch.int32),
        trap_block=num_blocks - 1,
        unowned=unowned + [Unowned("kv.neighbor", memory) for memory in beside],
        layout=params.layout,
    )
