"""vLLM's chunked prefill: are tokens without context kept out of the merge with rows that no kernel wrote?

Of the kernels that stand in, the one over context writes only rows of tokens that have context in the chunk it was
given (vllm-project/vllm#36540). vLLM's merge is its Triton kernel, under Triton's interpreter. Up to 0.25.1 it is told
how many tokens have context; 0.26.0 marks the unwritten rows of a chunk as well (`mask_empty_context`); from 0.28.0
vLLM allocates the context's output itself and clears the rows of requests that no chunk names (`empty_token_slices`,
vllm-project/vllm#50613).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from harness.engines.vllm.host.prefill_step import CHUNKS, DECODE, FRESH, SCALE, Inputs, Step
from harness.engines.vllm.params import VllmHostParams
from harness.judge.run_records import Run
from harness.kernels.torch.context import context_attention
from harness.memory.poison.allocations import AllocationPoison
from harness.memory.poison.patterns import Poison

REQUESTS = (DECODE, CHUNKS["longer"], FRESH)
"""Requests with context before those without: the order that vLLM asks for up to 0.27.1."""


def run(poison: Poison, params: VllmHostParams) -> Run:
    """One step of a prompt chunk with context and a fresh prompt; both against float64 attention."""
    kernel = _ContextKernel(poison)
    step = Step(REQUESTS, Inputs(poison, REQUESTS), kernel)
    # What this allocates beside is context output: the copies that hold rows which no kernel wrote.
    with AllocationPoison(poison, _AllContext(), keep=False):
        return Run(poison.pattern, observed=step.prefill())


class _AllContext(Mapping[int, str]):
    """Every allocation is context output, whatever its ordinal."""

    def __getitem__(self, ordinal: int) -> str:
        return "context.output"

    def __iter__(self) -> Iterator[int]:
        yield 0

    def __len__(self) -> int:
        return 1


class _ContextKernel:
    """Attention over a chunk of context that writes neither output of a token without context in it."""

    def __init__(self, poison: Poison) -> None:
        self._poison = poison

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, starts: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        found, found_lse = context_attention(q, k, v, starts, keys, scale=SCALE)
        out = self._poison.empty(*found.shape, dtype=found.dtype, site="context.output")
        lse = self._poison.empty(*found_lse.shape, dtype=found_lse.dtype, site="context.lse")
        written = ~found_lse.isneginf().all(dim=0)
        out[written] = found[written]
        lse[:, written] = found_lse[:, written]
        return out, lse
