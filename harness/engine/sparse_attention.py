"""An MLA layer that attends to tokens chosen by an indexer (DeepSeek-V3.2), in decodes and prompts alike."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.core.seams import seam
from harness.engine.batch import Batch
from harness.engine.kernels import ActivationQuantizer, Kernels
from harness.engine.memory import PagedMemory
from harness.engine.model.mla import Indexer, MLAAttention
from harness.engine.schedule.config import NULL_BLOCK, PAGE_SIZE
from harness.memory.bounds import check_indices
from harness.memory.graph.launch import launch
from harness.memory.poison.patterns import Poison

TILE = 4
"""Rows of decoding requests that the top-k of a decode handles at once."""


def store_index_keys(keys: Tensor, cache: Tensor, slot_mapping: Tensor) -> None:
    """Write keys [T, I] into the slots [T] of cache [N, P, I]. Negative slots are skipped."""
    is_stored = slot_mapping >= 0
    slots = check_indices(torch.where(is_stored, slot_mapping, 0), cache.shape[0] * PAGE_SIZE, "slot_mapping")
    block, offset = slots // PAGE_SIZE, slots % PAGE_SIZE
    # A graph cannot hold a list of live tokens, so padding writes back what it read.
    cache[block, offset] = torch.where(is_stored[:, None], keys, cache[block, offset])


def select_tokens(
    indexer: Indexer, x: Tensor, cache: Tensor, tables: Tensor, lengths: Tensor, num_decode_tokens: int, poison: Poison
) -> Tensor:
    """The positions [T, K] int32 that each query attends to, K = `topk`; -1 where there are fewer tokens.

    x [T, hidden]; index keys `cache` [N, P, I]; tables [T, M] int32 and lengths [T] of each query's request, its own
    token included. Decodes and prompts share one buffer, decodes first.
    """
    logits = index_logits(indexer, x, cache, tables, lengths, poison)
    n, k = num_decode_tokens, indexer.topk
    selected = poison.empty(x.shape[0], k, dtype=torch.int32, site="sparse.topk", device=x.device)
    selected[n:] = take_topk(logits[n:], lengths[n:], k, poison)
    if n:
        tiles = poison.empty(-(-n // TILE) * TILE, k, dtype=torch.int32, site="sparse.topk", device=x.device)
        tiles[:n] = take_topk(logits[:n], lengths[:n], k, poison)
        store_decode_rows(selected, tiles, n)
    return selected


def index_logits(indexer: Indexer, x: Tensor, cache: Tensor, tables: Tensor, lengths: Tensor, poison: Poison) -> Tensor:
    """The indexer's scores [T, M * P] float32 of the pages of each query, unwritten past a row's length.

    Entries of `tables` past the last page are not looked up.
    """
    is_page = torch.arange(tables.shape[1], device=x.device) * PAGE_SIZE < lengths[:, None]
    blocks = check_indices(torch.where(is_page, tables, NULL_BLOCK), cache.shape[0], "block_table of the indexer")
    keys = cache[blocks].flatten(1, 2)
    logits = poison.empty(*keys.shape[:2], dtype=torch.float32, site="sparse.logits", device=x.device)
    written = torch.arange(keys.shape[1], device=x.device) < lengths[:, None]
    # Keys past the length are uninitialised memory. Their scores are computed and dropped.
    return logits.copy_(torch.where(written, indexer.scores(x, keys).float(), logits))


@seam("sparse.topk-from-unwritten")
def take_topk(logits: Tensor, lengths: Tensor, topk: int, poison: Poison) -> Tensor:
    """The positions [T, K] int32 of the K largest of the first `lengths` [T] logits of each row, -1 for none.

    Every element is written, also when logits are NaN and comparisons choose nothing (PR 49896).
    """
    out = torch.full((logits.shape[0], topk), -1, dtype=torch.int32, device=logits.device)
    positions = torch.arange(logits.shape[1], device=logits.device)
    best = logits.masked_fill(positions >= lengths[:, None], -torch.inf).topk(min(topk, logits.shape[1]), dim=-1)
    chosen = torch.where(best.indices < lengths[:, None], best.indices, -1)
    out[:, : chosen.shape[1]] = chosen.to(torch.int32)
    return out


@seam("sparse.padding-overwrites-prefill")
def store_decode_rows(selected: Tensor, tiles: Tensor, num_decode_tokens: int) -> None:
    """Copy the decodes' rows of `tiles` into `selected` [T, K].

    The padded rows of `tiles` must not be stored: the prompts' rows follow in the same buffer (PR 32175).
    """
    selected[:num_decode_tokens] = tiles[:num_decode_tokens]


def pool_slots(selected: Tensor, tables: Tensor) -> Tensor:
    """The slots [T, K] int32 of the `selected` positions [T, K] of requests with `tables` [T, M]; -1 stays."""
    is_token = selected >= 0
    column = torch.where(is_token, selected // PAGE_SIZE, 0)
    blocks = tables.gather(1, check_indices(column, tables.shape[1], "sparse.topk column"))
    return torch.where(is_token, blocks * PAGE_SIZE + selected % PAGE_SIZE, -1).to(torch.int32)


@dataclass(slots=True, eq=False)
class PagedSparseMLA:
    """One sparse layer. Each query token is a row with its own list of tokens to attend to."""

    attention: MLAAttention
    layer: int
    kernels: Kernels
    quantize: ActivationQuantizer
    poison: Poison

    def __call__(self, x: Tensor, batch: Batch, memory: PagedMemory) -> tuple[Tensor, Tensor]:
        """x: [T, hidden] -> [T, hidden], and the positions [T, K] int32 that each token attended to."""
        attention, indexer = self.attention, self.attention.indexer
        assert indexer is not None
        cache, kv_scale = memory.latents(self.layer), memory.layout.scale_of(self.layer)
        q_nope, q_pe = attention.project_q(x, batch.positions)
        kv_c, k_pe = attention.project_kv(x, batch.positions)
        self.kernels.write_kv(kv_c, k_pe, cache, batch.stored_slots, kv_scale=kv_scale)
        index_cache = memory.index_keys(self.layer)
        launch(store_index_keys, indexer.keys(x), index_cache, batch.stored_slots)
        tables, lengths = rows_of_tokens(batch)
        selected = launch(select_tokens, indexer, x, index_cache, tables, lengths, batch.num_decode_tokens, self.poison)
        q = torch.cat((attention.absorb_q(q_nope), q_pe), dim=-1)
        indices = launch(pool_slots, selected, tables)
        out, _ = self.kernels.mla_decode_sparse(q, cache, indices, scale=attention.softmax_scale, kv_scale=kv_scale)
        values = attention.expand_v(out)
        projected: Tensor = attention.o_proj(self.quantize(values.flatten(1), batch))
        return projected, selected


def rows_of_tokens(batch: Batch) -> tuple[Tensor, Tensor]:
    """The block table [T, M] int32 of each token's request, and the number [T] of tokens it sees, 0 for padding."""
    tables, lengths = [], []
    if batch.decode is not None:
        steps = torch.arange(1 - batch.decode.query_len, 1, device=batch.positions.device)
        tables.append(batch.decode.block_table.repeat_interleave(batch.decode.query_len, dim=0))
        lengths.append((batch.decode.seq_lens[:, None] + steps).clamp(min=0).flatten())
    for request in batch.prefill:
        row = torch.tensor(request.blocks + batch.table_pad[len(request.blocks) :], dtype=torch.int32)
        tables.append(row.to(batch.positions.device).expand(request.end - request.start, -1))
        lengths.append(batch.positions[request.start : request.end] + 1)
    return torch.cat(tables), torch.cat(lengths)
