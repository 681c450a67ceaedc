"""What an engine chose besides tokens: the experts of each token, and the tokens that sparse layers
attended to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from harness.engine.batch import Batch
from harness.engine.paged_model import Forwarded
from harness.engine.probe import Probe
from harness.engine.schedule.sequence import ScheduledSequence, Sequence

Choice = tuple[Tensor | None, Tensor | None]
"""The experts [L, k] of a token, and the positions [L, K] that it attended to in sparse layers."""


class Choices(Probe):
    """Choices by number of the request.

    `expert_ids[r][p]` are the experts [L, k] of position p, `selected[r][p]` the positions [L, K]
    that it attended to in sparse layers. `routed` has the expert ids [T, k] of all rows of each
    forward, padded rows included. With `prefix_caching` a request gets the choices of the request
    that computed its prefix.
    """

    def __init__(self, prefix_caching: bool) -> None:
        self.expert_ids: dict[int, dict[int, Tensor]] = {}
        self.selected: dict[int, dict[int, Tensor]] = {}
        self.routed: list[Tensor] = []
        self._prefix_caching = prefix_caching
        self._of_prefix: dict[int, Choice] = {}
        self._ordered: list[ScheduledSequence] = []

    @contextlib.contextmanager
    def on_step(self, ordered: list[ScheduledSequence], batch: Batch) -> Iterator[None]:
        self._ordered = ordered
        yield

    def on_forwarded(self, forwarded: Forwarded) -> None:
        if not forwarded.expert_ids and not forwarded.selected:
            return
        experts = torch.stack(forwarded.expert_ids, dim=1).cpu() if forwarded.expert_ids else None
        selected = torch.stack(forwarded.selected, dim=1).cpu() if forwarded.selected else None
        if experts is not None:
            self.routed.append(experts.flatten(0, 1))
        row = 0
        for item in self._ordered:
            sequence = item.sequence
            start = item.sequence.num_computed_tokens
            if start == sequence.num_shared_tokens:
                self._take_shared(sequence)
            tokens = sequence.tokens + sequence.drafts
            for position in range(start, start + item.num_new_tokens):
                chosen = (
                    None if experts is None else experts[row],
                    None if selected is None else selected[row],
                )
                self._keep(sequence, position, chosen)
                if self._prefix_caching:
                    self._of_prefix[_prefix_hash(tokens, position)] = chosen
                row += 1

    def _take_shared(self, sequence: Sequence) -> None:
        for position in range(sequence.num_shared_tokens):
            chosen = self._of_prefix.get(_prefix_hash(sequence.tokens, position))
            if chosen is not None:
                self._keep(sequence, position, chosen)

    def _keep(self, sequence: Sequence, position: int, chosen: Choice) -> None:
        for kept, value in zip((self.expert_ids, self.selected), chosen, strict=True):
            if value is not None:
                kept.setdefault(sequence.request, {})[position] = value


def _prefix_hash(tokens: list[int], position: int) -> int:
    # By the whole past, on which a choice depends.
    return hash(tuple(tokens[: position + 1]))
