"""Memory that decode kernels share from launch to launch: counters that have to stay zero, and scratch that need not.

Both are allocated before anything is captured, for the largest batch there can ever be. A graph reads the addresses of
its capture for the rest of its life, and memory that is allocated during a capture belongs to the graph's pool.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.core.engine_params import EngineParams
from harness.core.seams import seam

GUARD_WORDS = 16
GUARD = 0x5AFE5AFE
"""What stands behind the last counter; a kernel is given an address, and sees no end."""


class Workspace:
    """The workspace of one engine.

    counters: [num_requests] int32, one for each request of a decode, zero between launches. scratch: [T, H, D] float32,
    where the query of a decode is put together; whoever used it last leaves it dirty.
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
        """The words [GUARD_WORDS] behind the last counter, which nobody may write."""
        return self._words[self.num_requests :]

    @seam("graph.workspace-grows", "graph.workspace-in-pool", "workspace.dirty-counters")
    def counters(self, num_requests: int) -> Tensor:
        """The counters for a batch of `num_requests`: the same memory for every batch, and used for nothing else.

        A smaller one that grows when a batch does leaves graphs with the old address (PR 45487). One
        made when a capture first needs it lies in the graph's pool (ROCm/aiter#5393). One that other kernels use as
        scratch is not zero (PR 25520).
        """
        return self._words[: min(num_requests, self.num_requests)]

    def query(self, nope: Tensor, rope: Tensor) -> Tensor:
        """Put nope [T, H, R] and rope [T, H, E] together in the scratch: [T, H, R + E]."""
        return torch.cat((nope, rope), dim=-1, out=self.scratch[: nope.shape[0]])


@seam("graph.buffers-by-request-limit")
def num_counters(params: EngineParams) -> int:
    """Requests that a batch can hold, padding included: more than run at once, where graphs are captured for more.

    Each limit alone is too small for somebody (PR 41016).
    """
    return max(params.max_num_seqs, *params.capture_sizes)
