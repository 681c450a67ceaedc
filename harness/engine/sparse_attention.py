"""An MLA layer that attends to tokens chosen by an indexer (DeepSeek-V3.2), in decodes and prompts alike."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.engine.batch import Batch
from harness.engine.kernels import Kernels
from harness.engine.memory import PagedMemory
from harness.engine.model.mla import MLAAttention
from harness.engine.quantize import ActivationQuantizer
from harness.engine.token_selection import pool_slots, select_tokens, store_index_keys
from harness.memory.graph.launch import launch
from harness.memory.poison.patterns import Poison


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
