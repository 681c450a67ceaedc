"""Notes of what a run chose where rounding may decide: experts of a token, and the tokens that a sparse layer saw."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.engine.observations import Observations
from harness.engine.paged_model import Forwarded
from harness.engine.schedule.scheduler import ScheduledSequence
from harness.engine.schedule.sequence import Sequence

Noted = tuple[Tensor | None, Tensor | None]


class ChoiceNotes:
    """Fills `expert_ids` and `selected` of the observations, position by position.

    A request that shares a prefix made no choices there; those of the request that computed it count.
    """

    def __init__(self, observations: Observations, prefix_caching: bool) -> None:
        self._observations = observations
        self._prefix_caching = prefix_caching
        self._of_prefix: dict[int, Noted] = {}

    def note(self, forwarded: Forwarded, ordered: list[ScheduledSequence]) -> None:
        """Note the choices of one forward, whose rows are those of `ordered`."""
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
                self._put(sequence, position, chosen)
                if self._prefix_caching:
                    self._of_prefix[_prefix(tokens, position)] = chosen
                row += 1

    def _note_shared(self, sequence: Sequence) -> None:
        for position in range(sequence.num_shared_tokens):
            chosen = self._of_prefix.get(_prefix(sequence.tokens, position))
            if chosen is not None:
                self._put(sequence, position, chosen)

    def _put(self, sequence: Sequence, position: int, chosen: Noted) -> None:
        kept = (self._observations.expert_ids, self._observations.selected)
        for notes, value in zip(kept, chosen, strict=True):
            if value is not None:
                notes.setdefault(sequence.request, {})[position] = value


def _prefix(tokens: list[int], position: int) -> int:
    return hash(tuple(tokens[: position + 1]))
