"""Memory that decode kernels share: counters, which must be zero between launches, and scratch.

Both are allocated before any capture, for the largest batch. A graph keeps the addresses of its capture, and memory
allocated during a capture belongs to the graph's pool.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.core.engine_params import EngineParams
from harness.core.seams import seam

GUARD_WORDS = 16
GUARD = 0x5AFE5AFE
"""The words behind the last counter, which no kernel may write."""


class Workspace:
    """The workspace of one engine.

    counters: [num_requests] int32, one for each request of a decode. scratch: [T, H, D] float32, where the query of a
    decode is put together; it stays dirty.
    """

    def __init__(self, params: EngineParams) -> None:
        self.num_requests = num_counters(params)
        query_len, head_dim = 1 + params.speculative_tokens, params.kv_lora_rank + params.qk_rope_head_dim
        num_tokens = query_len * max(params.max_num_seqs, *params.capture_sizes)
        self.scratch = torch.zeros(num_tokens, params.num_heads, head_dim)
        self._words = torch.zeros(self.num_requests + GUARD_WORDS, dtype=torch.int32)
        self.guard.fill_(GUARD)

    @property
    def guard(self) -> Tensor:
        """The words [GUARD_WORDS] behind the last counter."""
        return self._words[self.num_requests :]

    @seam("graph.workspace-grows", "graph.workspace-in-pool", "workspace.dirty-counters")
    def counters(self, num_requests: int) -> Tensor:
        """The counters for a batch of `num_requests`: the same memory for every batch, used for nothing else.

        Counters that grow with the batch leave graphs with an old address (PR 45487). Counters made in a capture lie in
        the graph's pool (ROCm/aiter#5393). Counters in shared scratch are not zero (PR 25520).
        """
        return self._words[: min(num_requests, self.num_requests)]

    def query(self, nope: Tensor, rope: Tensor) -> Tensor:
        """Concatenate nope [T, H, R] and rope [T, H, E] in the scratch: [T, H, R + E]."""
        return torch.cat((nope, rope), dim=-1, out=self.scratch[: nope.shape[0]])


@seam("graph.buffers-by-request-limit")
def num_counters(params: EngineParams) -> int:
    """The most requests of a batch, padding included: the request limit or the largest graph (PR 41016)."""
    return max(params.max_num_seqs, *params.capture_sizes)
