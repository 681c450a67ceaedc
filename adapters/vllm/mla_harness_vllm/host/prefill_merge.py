"""vLLM's chunked prefill: does the merge skip context rows that no kernel wrote?

The stand-in for the context kernel writes only rows of tokens that have context in the chunk
(vllm-project/vllm#36540). vLLM's merge kernel runs under Triton's interpreter. vLLM skips the
unwritten rows in three ways:

- up to 0.25.1 the merge gets the number of tokens with context;
- 0.26.0 also masks the unwritten rows of each chunk (`mask_empty_context`);
- since 0.28.0 vLLM allocates the context output itself and clears the rows of requests that are in
  no chunk (`empty_token_slices`, vllm-project/vllm#50613).
"""

from __future__ import annotations

from torch import Tensor
from torch_poison.patterns import Poison

from harness.api import Run, kernel_function
from mla_harness_vllm.host.prefill_step import (
    CHUNKS,
    DECODE,
    FRESH,
    SCALE,
    ContextKernel,
    Inputs,
    PrefillStep,
)
from mla_harness_vllm.params import VllmHostParams

CONTEXT_ATTENTION = kernel_function("context_attention", "torch")
REQUESTS = (DECODE, CHUNKS["longer"], FRESH)
"""Requests with context come first, as vLLM requires up to 0.27.1."""


def run(poison: Poison, params: VllmHostParams) -> Run:
    return PrefillStep(REQUESTS, Inputs(poison, REQUESTS), _context_kernel(poison)).run(poison)


def _context_kernel(poison: Poison) -> ContextKernel:
    """Attention over a chunk of context that leaves rows of tokens without context unwritten."""

    def attend(
        q: Tensor, k: Tensor, v: Tensor, starts: Tensor, keys: Tensor
    ) -> tuple[Tensor, Tensor]:
        """q [T, H, D], k [K, H, D], v [K, H, V], starts and keys [requests + 1] -> out [T, H, V],
        lse [H, T].
        """
        full_out, full_lse = CONTEXT_ATTENTION(q, k, v, starts, keys, scale=SCALE)
        out = poison.empty(*full_out.shape, dtype=full_out.dtype, site="context.output")
        lse = poison.empty(*full_lse.shape, dtype=full_lse.dtype, site="context.lse")
        written = ~full_lse.isneginf().all(dim=0)
        out[written] = full_out[written]
        lse[:, written] = full_lse[:, written]
        return out, lse

    return attend
