"""What an engine chose besides tokens: the experts of each token, and the tokens that sparse layers
attended to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from harness.engine.batch import Batch
from harness.engine.paged_model import Forwarded
from harness.engine.probe import Probe
from harness.engine.schedule.sequence import ScheduledSequence, Sequence

Choice = tuple[Tensor | None, Tensor | None]
"""The experts [L, k] of a token, and the positions [L, K] that it attended to in sparse layers."""


@dataclass(slots=True)
class Chosen:
    """The choices of one model, by number of the request and position.

    `expert_ids[r][p]` are the experts [L, k] of position p, `selected[r][p]` the positions [L, K]
    that it attended to in sparse layers. `of_prefix` has them by the tokens up to a position.
    """

    expert_ids: dict[int, dict[int, Tensor]] = field(default_factory=dict)
    selected: dict[int, dict[int, Tensor]] = field(default_factory=dict)
    of_prefix: dict[int, Choice] = field(default_factory=dict)


class Choices(Probe):
    """What each model chose: a request that starts over after a reload chooses again.

    `routed` has the expert ids [T, k] of all rows of each forward, padded rows included. With
    `prefix_caching` a request gets the choices of the request that computed its prefix.
    """

    def __init__(self, prefix_caching: bool) -> None:
        self.routed: list[Tensor] = []
        self._of_model: dict[tuple[int, int], Chosen] = {}
        self._prefix_caching = prefix_caching
        self._ordered: list[ScheduledSequence] = []

    def of(self, model: tuple[int, int]) -> Chosen:
        """The choices of a model: the number of reloads, and the adapter."""
        return self._of_model.setdefault(model, Chosen())

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
                    of_prefix = self.of(sequence.model).of_prefix
                    of_prefix[_prefix_hash(tokens, position)] = chosen
                row += 1

    def _take_shared(self, sequence: Sequence) -> None:
        of_prefix = self.of(sequence.model).of_prefix
        for position in range(sequence.num_shared_tokens):
            chosen = of_prefix.get(_prefix_hash(sequence.tokens, position))
            if chosen is not None:
                self._keep(sequence, position, chosen)

    def _keep(self, sequence: Sequence, position: int, chosen: Choice) -> None:
        own = self.of(sequence.model)
        for kept, value in zip((own.expert_ids, own.selected), chosen, strict=True):
            if value is not None:
                kept.setdefault(sequence.request, {})[position] = value


def _prefix_hash(tokens: list[int], position: int) -> int:
    # By the whole past, on which a choice depends.
    return hash(tuple(tokens[: position + 1]))
