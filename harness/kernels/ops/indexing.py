"""Inputs of `index_logits`, `select_topk` and `map_indices`, and their references."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from harness.core.index_params import IndexLogitsParams, MapIndicesParams, SelectTopkParams
from harness.core.ops import PAGE_SIZE
from harness.kernels.ops import cache_layouts
from harness.kernels.ops.inputs import NULL_BLOCK, CacheInputs, Inputs, Unowned
from harness.kernels.ops.record_formats import RECORDS, decode, encode, spans, store, stored

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


@dataclass(slots=True)
class TopkInputs(Inputs):
    """Arguments of `select_topk`, and the buffer [T + 2, K] that begins with the rows of `out`."""

    logits: Tensor
    seq_lens: Tensor
    topk: int
    buffer: Tensor


@dataclass(slots=True)
class MapInputs(Inputs):
    """Arguments of `map_indices`, and the buffer [T + later tokens, K] that begins with the rows of
    `out`.
    """

    positions: Tensor
    block_table: Tensor
    requests: Tensor
    page_size: int
    buffer: Tensor
    trap_block: int


@dataclass(slots=True)
class Pages:
    """Pages scattered over a pool: the table [B, M] with its padding, the pages of no request, the
    padded entries.
    """

    table: Tensor
    free: Tensor
    pads: list[Unowned] = field(default_factory=list)


def index_logits(params: IndexLogitsParams, seed: int) -> LogitInputs:
    """Requests with keys in scattered pages; their unused slots and all other pages are unowned."""
    generator = torch.Generator().manual_seed(seed)
    pages = _pages(params.seq_lens, params.table_pad, generator, spare=2)
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
        weights=torch.randn(shape, generator=generator)
        * (params.num_heads * params.index_head_dim) ** -0.5,
        kv_cache=cache,
        block_table=pages.table,
        seq_lens=torch.tensor(params.seq_lens, dtype=torch.int32),
        trap_block=num_blocks - 1,
        unowned=unowned + [Unowned("kv.neighbor", memory) for memory in beside],
        layout=params.layout,
    )


def expected_logits(given: LogitInputs) -> tuple[Tensor, Tensor]:
    """Logits [T, L] float64 from live keys alone, 0 in undefined columns, and which are defined,
    [T, L] bool.
    """
    num_requests, num_tokens = given.q.shape[:2]
    logits = torch.zeros(
        num_requests, num_tokens, given.block_table.shape[1] * PAGE_SIZE, dtype=torch.float64
    )
    defined = torch.zeros(logits.shape, dtype=torch.bool)
    for b, length in enumerate(given.seq_lens.tolist()):
        slots = slots_of(given.block_table[b], length)
        is_packed = given.kv_cache.dtype == torch.uint8
        blocks, places = slots // PAGE_SIZE, slots % PAGE_SIZE
        keys = (
            decode(stored(given.kv_cache, slots, PLANAR), PLANAR)
            if is_packed
            else given.kv_cache[blocks, places]
        )
        products = given.q[b].float().double() @ keys.double().T
        scores = (products.relu() * given.weights[b].double()[..., None]).sum(1)
        for s in range(num_tokens):
            visible = max(0, length - num_tokens + s + 1)
            logits[b, s, :visible], defined[b, s, :visible] = scores[s, :visible], True
    return logits.flatten(0, 1), defined.flatten(0, 1)


def select_topk(params: SelectTopkParams, seed: int) -> TopkInputs:
    """Logits of each row up to its length; what is behind is unowned, and so is the output's
    buffer.
    """
    generator = torch.Generator().manual_seed(seed)
    rows, columns = (
        len(params.seq_lens) * params.query_len,
        max(params.seq_lens) + params.spare_columns,
    )
    logits = torch.zeros(rows, columns)
    if params.row_stride:
        logits = cache_layouts.spread((rows, columns), torch.float32, params.row_stride)
    lens = torch.tensor(params.seq_lens, dtype=torch.int32)
    lengths = lengths_of_rows(lens, params.query_len)
    for row in range(rows):
        word = params.values[row % len(params.values)]
        logits[row] = _drawn(word, columns, params.topk, generator)
    buffer = torch.zeros(rows + 2, params.topk, dtype=torch.int32)
    unowned = [
        Unowned("sparse.logits", logits[row, length:])
        for row, length in enumerate(lengths.tolist())
    ]
    return TopkInputs(
        logits, lens, params.topk, buffer, unowned=[*unowned, Unowned("sparse.topk", buffer)]
    )


def right_choice(logits: Tensor, seq_lens: Tensor, chosen: Tensor) -> Tensor:
    """A right choice [T, K] int64 for each row, in falling order: the row of `chosen` [T, K] if it
    is one.

    A choice is right if it has distinct positions below the row's length, as many as there are or
    K, and none that is left has a larger logit. logits [T, L] float32.
    """
    lengths = lengths_of_rows(seq_lens, len(logits) // len(seq_lens)).tolist()
    found = chosen.long().sort(dim=1, descending=True).values
    for row, length in enumerate(lengths):
        count = min(length, chosen.shape[1])
        own, values = found[row, :count], logits[row, :length]
        inside = bool(((own >= 0) & (own < length)).all()) and len(set(own.tolist())) == count
        if inside and bool((found[row, count:] == -1).all()):
            left = torch.ones(length, dtype=torch.bool)
            left[own] = False
            if count == length or count == 0 or bool(values[own].min() >= values[left].max()):
                continue
        found[row] = -1
        found[row, :count] = (
            values.argsort(descending=True, stable=True)[:count].sort(descending=True).values
        )
    return found


def map_indices(params: MapIndicesParams, seed: int) -> MapInputs:
    """Positions below the length of each token's request, and -1; rows of the buffers past the
    tokens are unowned.
    """
    generator = torch.Generator().manual_seed(seed)
    pages = _pages(params.seq_lens, params.table_pad, generator)
    live = pages.table > 0
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


def expected_slots(given: MapInputs) -> Tensor:
    """Slots [T, K] int64, -1 where there is no position."""
    table = given.block_table.long()[given.requests[: len(given.positions)].long()]
    positions = given.positions.long()
    slots = table.gather(1, positions.clamp(min=0) // PAGE_SIZE) * PAGE_SIZE + positions % PAGE_SIZE
    return torch.where(positions >= 0, slots, -1)


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


def _pages(lengths: tuple[int, ...], pad: int, generator: torch.Generator, spare: int = 0) -> Pages:
    counts = [-(-length // PAGE_SIZE) for length in lengths]
    order = 1 + torch.randperm(sum(counts) + spare, generator=generator)
    *owned, free = torch.split(order, [*counts, spare])
    pages = Pages(torch.zeros(len(lengths), max(counts) + pad, dtype=torch.int32), free)
    for b, blocks in enumerate(owned):
        pages.table[b, : len(blocks)] = blocks.to(torch.int32)
        pages.pads.append(Unowned("block_table.pad", pages.table[b, len(blocks) :]))
    return pages


def _drawn(word: str, count: int, topk: int, generator: torch.Generator) -> Tensor:
    """Logits [count] of a row; see `LogitValues`."""
    values = torch.randn(count, generator=generator)
    if word == "ties":
        return values.round()
    if word == "plain":
        return values
    signs = torch.randint(2, (count,), generator=generator) * 2.0 - 1.0
    zeros = torch.zeros(count) * signs if word == "signed_zeros" else torch.zeros(count)
    if word != "zero":
        # Fewer positive logits than K, so that rank K lies among the zeros.
        places = torch.randperm(count, generator=generator)[: max(0, topk - 3) * 3 // 4]
        zeros[places] = values[places].abs() + 0.1
    return zeros
