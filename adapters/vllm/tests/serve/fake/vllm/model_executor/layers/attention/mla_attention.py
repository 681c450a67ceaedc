"""The part of vLLM's MLA attention that a bug can be put back into, small enough for a CPU."""

from __future__ import annotations

from typing import Any

import torch


def merge(
    output: torch.Tensor, context: torch.Tensor, new: torch.Tensor, prefill_tokens_with_context: Any
) -> None:
    """`output` [T, V] is the new part, plus that of the context [T, 1, V] for tokens that have
    one.
    """
    count = len(output) if prefill_tokens_with_context is None else prefill_tokens_with_context
    output.copy_(new)
    output[:count] += context[:count, 0]


class MLACommonImpl:
    def _compute_prefill_context(self, q: torch.Tensor, cache: Any, attn_metadata: Any) -> Any:
        return torch.ones(len(q), 1, q.shape[1]), torch.ones(1, len(q))

    def forward_mha(
        self, q: torch.Tensor, cache: Any, attn_metadata: Any, output: torch.Tensor
    ) -> None:
        prefill_metadata = attn_metadata.prefill
        context, _ = self._compute_prefill_context(q, cache, attn_metadata)
        merge(
            output,
            context,
            q,
            prefill_tokens_with_context=prefill_metadata.chunked_context.prefill_tokens_with_context,
        )
