"""Faults of drafters and of idle steps.

A wrong draft costs no answer, so accuracy stays as it was.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch_poison.patterns import Poison

from harness.engine.batch import NO_KEYS, Batch, Padding, fill_static
from harness.engine.memory import PagedMemory, zero_listed_blocks
from harness.engine.next_tokens import DraftMLA
from harness.engine.poisoned import fill_handed_over
from harness.engine.schedule.config import PAGE_SIZE
from harness.engine.schedule.sequence import ScheduledSequence, Sequence, Step
from harness.memory.graph.interface import Graph


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


def all_drafts_accepted(sequence: Sequence, query_len: int) -> int:
    """Count the drafts of the step before, too, as if none had been refused
    (vllm-project/vllm-ascend#10032).
    """
    return sequence.num_computed_tokens + query_len + query_len - 1


def last_hidden_first(hidden: Tensor) -> Tensor:
    """Give the first row of hidden [T, H] float32 the last one's (ikawrakow/ik_llama.cpp#2222)."""
    return torch.cat((hidden[-1:], hidden[1:]))


def smallest_graph(graphs: dict[int, Graph], num_rows: int) -> Graph:
    """Take one graph for any number of rows (InternLM/lmdeploy#4661)."""
    return graphs[min(graphs)]


def pool_of_its_own(memory: PagedMemory, step: Step, poison: Poison) -> None:
    """Give the drafter the pages that a prompt found as new ones of its own pool
    (sgl-project/sglang#19897).
    """
    fill_handed_over(memory, step, poison)
    zero_listed_blocks(memory, step)
    # Its layer is behind those of the target.
    latents = memory.latents(len(memory.layout.group_of_layer) - 1)
    for sequence in (item.sequence for item in step.scheduled):
        num_shared = sequence.num_shared_tokens
        if sequence.num_computed_tokens == num_shared:
            for block in sequence.blocks[: num_shared // PAGE_SIZE]:
                poison.fill_(latents[block], "kv.new")
