"""A layer of Kimi Delta Attention on paged memory: each request has one state, in a block of its
own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.core.seams import seam
from harness.engine.batch import Batch, PrefillRequest
from harness.engine.memory import PagedMemory
from harness.engine.model.kda import KimiDeltaAttention
from harness.engine.schedule.config import NULL_BLOCK
from harness.memory.bounds import check_indices
from harness.memory.graph.launch import launch


@dataclass(slots=True, eq=False)
class PagedKDA:
    """One linear-attention layer.

    A request's first tokens start from zeros, whatever its block held.
    """

    attention: KimiDeltaAttention
    layer: int

    def __call__(self, x: Tensor, batch: Batch, memory: PagedMemory) -> Tensor:
        """x: [T, hidden] -> [T, hidden]. Updates the states in the pool."""
        conv = memory.conv_states(self.layer)
        ssm = memory.ssm_states(self.layer)
        parts = []
        if batch.decode is not None:
            rows = x[: batch.num_decode_tokens]
            parts.append(
                launch(update_states, self.attention, rows, conv, ssm, batch.decode.state_blocks)
            )
        parts += [
            self._prefill(x[request.start : request.end], conv, ssm, request)
            for request in batch.prefill
        ]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _prefill(self, x: Tensor, conv: Tensor, ssm: Tensor, request: PrefillRequest) -> Tensor:
        # A prompt is never captured, so the host may read here.
        block = int(state_rows(torch.tensor([request.state_block]), conv.shape[0]))
        conv_state = conv[block]
        ssm_state = ssm[block]
        if request.context_len == 0:
            # The block may hold the state of its last request, or poison: it is never read before
            # this.
            conv_state.zero_()
            ssm_state.zero_()
        out: Tensor = self.attention.step(x, conv_state, ssm_state)
        return out


def update_states(
    attention: KimiDeltaAttention, x: Tensor, conv: Tensor, ssm: Tensor, state_blocks: Tensor
) -> Tensor:
    """One token for each of B requests: x [B, hidden], state_blocks [B] int32 -> [B, hidden].

    Rows with the null block are padding: their output is undefined and their state is not written
    (vllm-project/vllm#39064). Raises IllegalAddress for a block outside the pool.

    conv [N, 3P, W - 1] and ssm [N, H, dk, dv] are the pools of states, written in place; ssm is
    float32.
    """
    blocks = state_rows(state_blocks, conv.shape[0])
    # A graph cannot hold a list of live rows, so padding writes the state that it read.
    live = owns_state(blocks)[:, None, None]
    conv_rows = conv[blocks]
    ssm_rows = ssm[blocks]
    conv_before = conv_rows.clone()
    ssm_before = ssm_rows.clone()
    out: Tensor = attention.step_batch(x.unsqueeze(1), conv_rows, ssm_rows).squeeze(1)
    # All rows of padding write the null block, and the same bits, so their order does not matter.
    conv[blocks] = torch.where(live, conv_rows, conv_before)
    ssm[blocks] = torch.where(live[..., None], ssm_rows, ssm_before)
    return out


@seam("pad.state-guard-below-zero")
def owns_state(blocks: Tensor) -> Tensor:
    """Which of `blocks` [B] hold a request's state: all but the null block, which marks padding.

    A guard that asks for negative blocks takes padding for requests (vllm-project/vllm#39064).

    The result is [B] bool.
    """
    return blocks != NULL_BLOCK


@seam("index.block-ids-clipped")
def state_rows(state_blocks: Tensor, num_blocks: int) -> Tensor:
    """The rows [B] int64 of the states of `state_blocks` [B].

    Raises IllegalAddress outside the pool.

    Ids are not clipped: requests with clipped ids would share the last state.
    """
    return check_indices(state_blocks, num_blocks, "state_blocks")
