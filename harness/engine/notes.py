"""Notes for judges: the experts and tokens that a run chose, and writes to memory that no request owns."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from harness.engine.memory import PagedMemory
from harness.engine.observations import Observations, WriteNote
from harness.engine.paged_model import Forwarded
from harness.engine.schedule.config import NULL_BLOCK
from harness.engine.schedule.scheduler import ScheduledSequence
from harness.engine.schedule.sequence import Sequence
from harness.engine.workspace import GUARD, Workspace

Choices = tuple[Tensor | None, Tensor | None]
"""The experts [L, k] of a token, and the positions [L, K] that it attended to in sparse layers."""


class ChoiceNotes:
    """Fills `expert_ids` and `selected` of the observations, position by position.

    A request that shares a prefix gets the choices of the request that computed it.
    """

    def __init__(self, observations: Observations, prefix_caching: bool) -> None:
        self._observations = observations
        self._prefix_caching = prefix_caching
        self._of_prefix: dict[int, Choices] = {}

    def note(self, forwarded: Forwarded, ordered: list[ScheduledSequence]) -> None:
        """Note the choices of one forward. Its rows are the tokens of `ordered`, then padding."""
        if not forwarded.expert_ids and not forwarded.selected:
            return
        experts = torch.stack(forwarded.expert_ids, dim=1).cpu() if forwarded.expert_ids else None
        selected = torch.stack(forwarded.selected, dim=1).cpu() if forwarded.selected else None
        if experts is not None:
            self._observations.routed.append(experts.flatten(0, 1))
        row = 0
        for item in ordered:
            sequence, start = item.sequence, item.sequence.num_computed_tokens
            if start == sequence.num_shared_tokens:
                self._note_shared(sequence)
            tokens = sequence.tokens + sequence.drafts
            for position in range(start, start + item.num_new_tokens):
                chosen = (None if experts is None else experts[row], None if selected is None else selected[row])
                self._keep(sequence, position, chosen)
                if self._prefix_caching:
                    self._of_prefix[_prefix_hash(tokens, position)] = chosen
                row += 1

    def _note_shared(self, sequence: Sequence) -> None:
        for position in range(sequence.num_shared_tokens):
            chosen = self._of_prefix.get(_prefix_hash(sequence.tokens, position))
            if chosen is not None:
                self._keep(sequence, position, chosen)

    def _keep(self, sequence: Sequence, position: int, chosen: Choices) -> None:
        notes_of_kind = (self._observations.expert_ids, self._observations.selected)
        for notes, value in zip(notes_of_kind, chosen, strict=True):
            if value is not None:
                notes.setdefault(sequence.request, {})[position] = value


def _prefix_hash(tokens: list[int], position: int) -> int:
    return hash(tuple(tokens[: position + 1]))


def written_blocks(before: PagedMemory, after: PagedMemory, free: Collection[int], step: int) -> list[WriteNote]:
    """The blocks that a dummy batch changed. `free` are the blocks without an owner."""
    changed = (before.data != after.data).any(dim=-1).any(dim=0).nonzero().flatten().tolist()
    notes = []
    for block in changed:
        site = "kv.null" if block == NULL_BLOCK else "kv.free" if block in free else None
        notes.append(WriteNote(step, f"block {block}", site, before.block(block), after.block(block)))
    return notes


def dirty_workspace(workspace: Workspace | None, num_requests: int, step: int) -> list[WriteNote]:
    """Counters that a step with `num_requests` decodes left dirty, and guard words that it overwrote."""
    if workspace is None or not num_requests:
        return []
    counters, guard = workspace.counters(num_requests), workspace.guard
    parts = (("the counters of decode", counters, 0), ("the words behind the counters of decode", guard, GUARD))
    return [
        WriteNote(step, name, "workspace", torch.full_like(words, value)[:, None], words.clone()[:, None])
        for name, words, value in parts
        if bool((words != value).any())
    ]
