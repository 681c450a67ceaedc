"""Faults of drafters and of idle steps.

A wrong draft costs no answer, so accuracy stays as it was.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch_poison.patterns import Poison

from harness.engine.batch import NO_KEYS, Batch, Padding, fill_static
from harness.engine.next_tokens import DraftMLA
from harness.engine.schedule.sequence import ScheduledSequence


def slots_of_last_step(batch: Batch, attention: DraftMLA) -> Tensor:
    """Look up the slots [T] of a dummy step in rows that still belong to the last step
    (vllm-project/vllm#56734).
    """
    # A fault is a function, so what it keeps lies beside the fields of the object that it is given.
    held = vars(attention)
    if bool((batch.stored_slots >= 0).any()):
        held["last_slots"] = batch.stored_slots
    stale: Tensor = held.get("last_slots", batch.stored_slots)[: len(batch.stored_slots)]
    return stale


def last_layer(num_layers: int) -> int:
    """Take the target's last layer, whose pages the drafter then writes over
    (sgl-project/sglang#33497).
    """
    return num_layers - 1


def twice(out: Tensor) -> Tensor:
    """Add up the outputs out [T, H] float32 of two ranks once more (ROCm/ATOM#1764)."""
    return out + out


def placeholder_as_token(known: Tensor, guessed: Tensor) -> Tensor:
    """Feed the placeholders among the tokens known [T] int64, clamped to token 0
    (vllm-project/vllm#46899).

    `guessed` [T] int64 has the right ones.
    """
    return known.clamp(min=0)


def guess_behind_chunk(item: ScheduledSequence) -> list[int]:
    """Let the target choose the token behind a chunk of a prompt, and keep it in the pages
    (vllm-project/vllm#55055).
    """
    sequence = item.sequence
    start = item.sequence.num_computed_tokens
    known = sequence.tokens[start + 1 : start + item.num_new_tokens]
    return known + [-1] * (item.num_new_tokens - len(known))


def rows_of_kept(num_rows: int, given: list[int]) -> int:
    """Go on by the drafts that were kept: each request behind has rows of the one before
    (vllm-project/vllm#49738).
    """
    return max(1, len(given))


def keep_state_rows(
    static: Batch, dummy: Batch, poison: Poison, padding: Padding = NO_KEYS
) -> None:
    """Leave the rows of states as the last step gathered them, so that a dummy step writes there
    (vllm-project/vllm#49757).
    """
    assert static.decode is not None
    rows = static.decode.state_blocks.clone()
    fill_static(static, dummy, poison, padding)
    static.decode.state_blocks.copy_(
        torch.where(static.decode.seq_lens > 0, rows, static.decode.state_blocks)
    )
