"""An MLA layer with a sliding window: masked decode, and prefill over the pages still in the window."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harness.engine.attention import PagedMLA, gather_context
from harness.engine.batch import Batch, DecodeInputs, PrefillRequest
from harness.engine.memory import PagedMemory


class PagedWindowMLA(PagedMLA):
    """One layer where query position p sees positions p - W + 1 .. p, W = `sliding_window`.

    It has its own block table, where evicted pages are the null block.
    """

    def _slots(self, batch: Batch) -> Tensor:
        assert batch.window_slots is not None
        return batch.window_slots

    def _table(self, inputs: DecodeInputs) -> tuple[Tensor, dict[str, Any]]:
        assert inputs.window_table is not None
        return inputs.window_table, {"window": self._window}

    @property
    def _window(self) -> int:
        assert self.attention.sliding_window is not None
        return self.attention.sliding_window

    def _prefill(
        self, q: Tensor, kv_c: Tensor, k_pe: Tensor, memory: PagedMemory, requests: tuple[PrefillRequest, ...]
    ) -> Tensor:
        """As the full layer's, without chunks: a window of context is short."""
        attention, outs = self.attention, []
        cache, kv_scale = memory.latents(self.layer), memory.layout.scale_of(self.layer)
        for request in requests:
            rows = slice(request.start, request.end)
            first = max(request.context_len - self._window + 1, 0)
            paged = replace(request, blocks=request.window_blocks)
            latents, _ = gather_context(cache, (paged,), [range(first, request.context_len)], kv_scale)
            latents, rank = latents.to(q.dtype), attention.kv_lora_rank
            k, v = attention.expand_kv(
                torch.cat((latents[:, :rank], kv_c[rows])), torch.cat((latents[:, rank:], k_pe[rows]))
            )
            positions = torch.arange(request.context_len, request.context_len + request.end - request.start)
            keys = torch.arange(first, int(positions[-1]) + 1)
            hidden = (keys > positions[:, None]) | (keys <= positions[:, None] - self._window)
            scores = torch.einsum("qhd,khd->hqk", q[rows], k) * attention.softmax_scale
            scores = scores.masked_fill(hidden.to(q.device), -torch.inf)
            outs.append(torch.einsum("hqk,khv->qhv", scores.softmax(-1), v))
        return torch.cat(outs)
