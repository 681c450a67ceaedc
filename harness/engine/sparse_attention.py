"""An MLA layer that attends to tokens chosen by an indexer (DeepSeek-V3.2), in decodes and prompts
alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch_poison.patterns import Poison

from harness.core.seams import seam
from harness.engine.attention import query_and_latents
from harness.engine.batch import Batch
from harness.engine.kernels import ActivationQuantizer, Kernels
from harness.engine.memory import PagedMemory
from harness.engine.model.mla import MLAAttention
from harness.engine.schedule.config import PAGE_SIZE
from harness.memory.bounds import check_indices
from harness.memory.graph.launch import launch

TILE = 4
"""Rows of decoding requests that the top-k of a decode handles at once."""


def store_index_keys(keys: Tensor, cache: Tensor, slot_mapping: Tensor) -> None:
    """Write keys [T, I] into the slots slot_mapping [T] int64 of cache [N, P, I]. Negative slots
    are skipped.

    Keys and cache have one type, float32 or bfloat16. Raises IllegalAddress for a slot past the
    pool.
    """
    is_stored = slot_mapping >= 0
    slots = check_indices(
        torch.where(is_stored, slot_mapping, 0), cache.shape[0] * PAGE_SIZE, "slot_mapping"
    )
    block = slots // PAGE_SIZE
    offset = slots % PAGE_SIZE
    # A graph cannot hold a list of live tokens, so padding writes back what it read.
    cache[block, offset] = torch.where(is_stored[:, None], keys, cache[block, offset])


def select_tokens(
    kernels: Kernels, logits: Tensor, lengths: Tensor, topk: int, num_decodes: int, poison: Poison
) -> Tensor:
    """The positions [T, K] int32 that each query attends to, -1 where there are fewer tokens.

    logits [T, M * P] of queries of `lengths` [T] int32. Decodes and prompts share one buffer,
    decodes first.
    """
    parts: list[Tensor] = [
        kernels.select_topk(logits[rows], lengths[rows], topk=topk)
        for rows in (slice(num_decodes), slice(num_decodes, None))
        if len(logits[rows])
    ]
    if not num_decodes:
        return parts[0]
    joined: Tensor = launch(join_rows, parts[0], parts[1] if len(parts) > 1 else None, poison)
    return joined


def join_rows(decodes: Tensor, prompts: Tensor | None, poison: Poison) -> Tensor:
    """One buffer [T, K] int32 of the rows of `decodes` [n, K] int32, handled in whole tiles, and
    those of `prompts` [T - n, K] int32 behind them.
    """
    n, k = decodes.shape
    total = n + (0 if prompts is None else len(prompts))
    selected = poison.empty(total, k, dtype=torch.int32, site="sparse.topk", device=decodes.device)
    if prompts is not None:
        selected[n:] = prompts
    # Rows of padding of the last tile stay unwritten, so that a store of them shows.
    tiles = poison.empty(
        -(-n // TILE) * TILE, k, dtype=torch.int32, site="sparse.topk", device=decodes.device
    )
    tiles[:n] = decodes
    store_decode_rows(selected, tiles, n)
    return selected


@seam("sparse.padding-overwrites-prefill")
def store_decode_rows(selected: Tensor, tiles: Tensor, num_decode_tokens: int) -> None:
    """Copy the decodes' rows of tiles [padded, K] int32 into selected [T, K] int32.

    The padded rows of `tiles` must not be stored: the prompts' rows follow in the same buffer
    (vllm-project/vllm#32175).
    """
    selected[:num_decode_tokens] = tiles[:num_decode_tokens]


@dataclass(slots=True, eq=False)
class PagedSparseMLA:
    """One sparse layer. Each query token is a row with its own list of tokens to attend to."""

    attention: MLAAttention
    layer: int
    kernels: Kernels
    quantize: ActivationQuantizer
    poison: Poison

    def __call__(self, x: Tensor, batch: Batch, memory: PagedMemory) -> tuple[Tensor, Tensor]:
        """x: [T, hidden] -> [T, hidden], and the positions [T, K] int32 that each token attended
        to.
        """
        attention = self.attention
        indexer = self.attention.indexer
        assert indexer is not None
        cache = memory.latents(self.layer)
        kv_scale = memory.layout.scale_of(self.layer)
        q_nope, q_pe, kv_c, k_pe = query_and_latents(attention, x, batch.positions)
        self.kernels.write_kv(kv_c, k_pe, cache, batch.stored_slots, kv_scale=kv_scale)
        index_cache = memory.index_keys(self.layer)
        # Before the logits, as latents are stored before attention: each token sees itself.
        launch(store_index_keys, indexer.keys(x), index_cache, batch.stored_slots)
        tables, lengths = rows_of_tokens(batch)
        queries, weights = indexer.queries(x)
        # Each token is a request with one query token here, and has its own row of the table.
        logits = self.kernels.index_logits(
            queries[:, None], weights[:, None], index_cache, tables, lengths
        )
        selected = select_tokens(
            self.kernels, logits, lengths, indexer.topk, batch.num_decode_tokens, self.poison
        )
        q = torch.cat((attention.absorb_q(q_nope), q_pe), dim=-1)
        selected = own_choice(self.layer, selected)
        indices = self.kernels.map_indices(
            selected, tables, table_rows(tables), page_size=PAGE_SIZE
        )
        out, _ = self.kernels.mla_decode_sparse(
            q, cache, indices, scale=attention.softmax_scale, kv_scale=kv_scale
        )
        values = attention.expand_v(out)
        projected: Tensor = attention.o_proj(self.quantize(values.flatten(1), batch))
        return projected, selected


@seam("sparse.choice-of-another-layer")
def own_choice(layer: int, selected: Tensor) -> Tensor:
    """What a layer with an indexer of its own attends to: `selected` [T, K] int32, the positions
    that it chose (ROCm/ATOM#1362).
    """
    return selected


@seam("sparse.request-past-the-table")
def table_rows(tables: Tensor) -> Tensor:
    """The row [T] int32 of each token in `tables` [T, M], which has no more rows than that
    (vllm-project/vllm#55637).
    """
    return torch.arange(len(tables), dtype=torch.int32, device=tables.device)


def rows_of_tokens(batch: Batch) -> tuple[Tensor, Tensor]:
    """The block table [T, M] int32 of each token's request, and the number [T] of tokens it sees, 0
    for padding.
    """
    tables = []
    lengths = []
    if batch.decode is not None:
        steps = torch.arange(1 - batch.decode.query_len, 1, device=batch.positions.device)
        tables.append(batch.decode.block_table.repeat_interleave(batch.decode.query_len, dim=0))
        # A padded request has length 0, so its earlier query tokens would have negative lengths.
        lengths.append((batch.decode.seq_lens[:, None] + steps).clamp(min=0).flatten())
    for request in batch.prefill:
        row = torch.tensor(
            request.blocks + batch.table_pad[len(request.blocks) :], dtype=torch.int32
        )
        tables.append(row.to(batch.positions.device).expand(request.end - request.start, -1))
        lengths.append(batch.positions[request.start : request.end] + 1)
    return torch.cat(tables), torch.cat(lengths).to(torch.int32)
