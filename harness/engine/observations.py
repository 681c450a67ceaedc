"""What a run of the engine leaves behind for its judges: logits, replays beside eager twins, addresses, experts."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True)
class ReplayNote:
    """Logits [B, vocab] of one replay of a graph of B rows, and of the same step run eagerly on a copy of memory.

    `eager_again` is a second eager run of the step, made on a GPU where the first is not the replay bit for bit.
    """

    step: int
    num_live: int
    replayed: torch.Tensor
    eager: torch.Tensor
    stale_plan: bool
    eager_again: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class BindingNote:
    """Where a graph of `size` captured an input, and where the engine updated that input before a replay."""

    step: int
    size: int
    name: str
    site: str
    captured_address: int
    current_address: int


@dataclass(slots=True)
class Observations:
    """Filled by the runner. Keys are request numbers, which are unique over the life of an engine.

    `logits[r]` has one row [vocab] for each generated token; `expert_ids[r][p]` the experts [L, k] of position p.
    """

    logits: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    expert_ids: dict[int, dict[int, torch.Tensor]] = field(default_factory=dict)
    replays: list[ReplayNote] = field(default_factory=list)
    bindings: list[BindingNote] = field(default_factory=list)
    num_eager_steps: int = 0
    num_mixed_steps: int = 0
    """Steps whose batch held decodes and prompts."""
