"""A Kimi Delta Attention layer with its states in blocks of the pool."""

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
    """One linear-attention layer. A request's first tokens start from zeros, whatever its block held."""

    attention: KimiDeltaAttention
    layer: int

    def __call__(self, x: Tensor, batch: Batch, memory: PagedMemory) -> Tensor:
        """x: [T, hidden] -> [T, hidden]. Updates the states in the pool."""
        conv, ssm = memory.conv_states(self.layer), memory.ssm_states(self.layer)
        parts = []
        if batch.decode is not None:
            rows = x[: batch.num_decode_tokens]
            parts.append(launch(update_states, self.attention, rows, conv, ssm, batch.decode.state_blocks))
        parts += [self._prefill(x[request.start : request.end], conv, ssm, request) for request in batch.prefill]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _prefill(self, x: Tensor, conv: Tensor, ssm: Tensor, request: PrefillRequest) -> Tensor:
        block = int(state_rows(torch.tensor([request.state_block]), conv.shape[0]))
        conv_state, ssm_state = conv[block], ssm[block]
        if request.context_len == 0:
            conv_state.zero_()
            ssm_state.zero_()
        out: Tensor = self.attention.step(x, conv_state, ssm_state)
        return out


def update_states(attention: KimiDeltaAttention, x: Tensor, conv: Tensor, ssm: Tensor, state_blocks: Tensor) -> Tensor:
    """One token for each of B requests: x [B, hidden], state_blocks [B] int32 -> [B, hidden].

    Rows with the null block are padding: their output is undefined and their state is not written (PR 39064). Raises
    IllegalAddress for a block outside the pool.
    """
    blocks = state_rows(state_blocks, conv.shape[0])
    # A graph cannot hold a list of live rows, so padding writes the state that it read.
    live = owns_state(blocks)[:, None, None]
    conv_rows, ssm_rows = conv[blocks], ssm[blocks]
    conv_before, ssm_before = conv_rows.clone(), ssm_rows.clone()
    out: Tensor = attention.step_batch(x.unsqueeze(1), conv_rows, ssm_rows).squeeze(1)
    conv[blocks] = torch.where(live, conv_rows, conv_before)
    ssm[blocks] = torch.where(live[..., None], ssm_rows, ssm_before)
    return out


@seam("pad.state-guard-below-zero")
def owns_state(blocks: Tensor) -> Tensor:
    """Which of `blocks` [B] hold a request's state: all but the null block, which marks padding.

    A guard that asks for negative blocks takes padding for requests (PR 39064).
    """
    return blocks != NULL_BLOCK


@seam("index.block-ids-clipped")
def state_rows(state_blocks: Tensor, num_blocks: int) -> Tensor:
    """The rows [B] int64 of the states of `state_blocks` [B]. Raises IllegalAddress outside the pool.

    Ids are not clipped: requests with clipped ids would share the last state.
    """
    return check_indices(state_blocks, num_blocks, "state_blocks")
