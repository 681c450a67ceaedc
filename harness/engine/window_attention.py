"""An MLA layer that sees a window of the last tokens: masked decode, and prefill over what is left of the cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harness.engine.attention import PagedMLA, gather_context
from harness.engine.batch import Batch, DecodeInputs, PrefillRequest


class PagedWindowMLA(PagedMLA):
    """One sliding-window layer: query position p sees positions p - W + 1 .. p, W = `sliding_window`.

    It has a block table of its own, in which pages that no query sees any more are the null block.
    """

    def _slots(self, batch: Batch) -> Tensor:
        assert batch.window_slots is not None
        return batch.window_slots

    def _table(self, inputs: DecodeInputs) -> tuple[Tensor, dict[str, Any]]:
        assert inputs.window_table is not None
        return inputs.window_table, {"window": self._window}

    @property
    def _window(self) -> int:
        assert self._attention.sliding_window is not None
        return self._attention.sliding_window

    def _prefill(
        self,
        q: Tensor,
        kv_c: Tensor,
        k_pe: Tensor,
        cache: Tensor,
        kv_scale: float | None,
        requests: tuple[PrefillRequest, ...],
    ) -> Tensor:
        """As the full layer's, in one piece: a window of context is short, so it is gathered whole."""
        attention, outs = self._attention, []
        for request in requests:
            rows = slice(request.start, request.end)
            first = max(request.context_len - self._window + 1, 0)
            latents, _ = gather_context(cache, (window_pages(request),), [range(first, request.context_len)], kv_scale)
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


def window_pages(request: PrefillRequest) -> PrefillRequest:
    """The request with the pages of its window layers in the place of those of the others."""
    return PrefillRequest(
        request.start, request.end, request.context_len, request.window_blocks, request.state_block,
        request.window_blocks,
    )  # fmt: skip
