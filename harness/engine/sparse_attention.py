"""An MLA layer that attends to the tokens that an indexer chose (DeepSeek-V3.2), for decodes and prompts alike."""

from __future__ import annotations

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


class PagedSparseMLA:
    """One sparse layer. Each query token is a row of its own: it has its own list of tokens to attend to."""

    def __init__(
        self, attention: MLAAttention, layer: int, kernels: Kernels, quantize: ActivationQuantizer, poison: Poison
    ) -> None:
        assert attention.indexer is not None
        self._attention = attention
        self._indexer = attention.indexer
        self._layer = layer
        self._kernels = kernels
        self._quantize = quantize
        self._poison = poison

    def __call__(self, x: Tensor, batch: Batch, memory: PagedMemory) -> tuple[Tensor, Tensor]:
        """x: [T, hidden] -> [T, hidden], and the positions [T, K] int32 that each token attended to."""
        attention, cache = self._attention, memory.latents(self._layer)
        kv_scale = memory.layout.scale_of(self._layer)
        q_nope, q_pe = attention.project_q(x, batch.positions)
        kv_c, k_pe = attention.project_kv(x, batch.positions)
        self._kernels.write_kv(kv_c, k_pe, cache, batch.stored_slots, kv_scale=kv_scale)
        index_cache = memory.index_keys(self._layer)
        launch(store_index_keys, self._indexer.keys(x), index_cache, batch.stored_slots)
        tables, lengths = rows_of_tokens(batch)
        selected = launch(
            select_tokens, self._indexer, x, index_cache, tables, lengths, batch.num_decode_tokens, self._poison
        )
        out, _ = self._kernels.mla_decode_sparse(
            torch.cat((attention.absorb_q(q_nope), q_pe), dim=-1), cache, launch(pool_slots, selected, tables),
            scale=attention.softmax_scale, kv_scale=kv_scale,
        )  # fmt: skip
        values = attention.expand_v(out)
        projected: Tensor = attention.o_proj(self._quantize(values.flatten(1), batch))
        return projected, selected


def rows_of_tokens(batch: Batch) -> tuple[Tensor, Tensor]:
    """The block table [T, M] int32 of each token's request, and how many tokens [T] it sees; 0 for padding."""
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
