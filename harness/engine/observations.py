"""What a run of the engine notes for judges: logits, replays and their eager twins, addresses, experts."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, slots=True)
class ReplayNote:
    """Logits [B, vocab] of one replay of a graph of B rows, and of the same step run eagerly on a copy of memory.

    `eager_again` is a second eager run on a GPU, made if the first differs from the replay.
    """

    step: int
    num_live: int
    replayed: Tensor
    eager: Tensor
    stale_plan: bool
    eager_again: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Binding:
    """The address where a captured graph reads an input, and the address that the engine updated before a replay."""

    step: int
    name: str
    site: str
    captured_address: int
    current_address: int


@dataclass(frozen=True, slots=True)
class NewestLogits:
    """The logits [n, vocab] of the last step's tokens, row i of request `requests[i]`.

    A request that computed only a part of its prompt got no token and has no row.
    """

    requests: tuple[int, ...]
    logits: Tensor


@dataclass(frozen=True, slots=True)
class ZeroedBlock:
    """A block that the scheduler listed for zeroing, and how many of its bytes were not zero when the step ran."""

    step: int
    block: int
    num_bytes: int
    num_dirty: int


@dataclass(frozen=True, slots=True)
class PaddingNote:
    """Logits [n, vocab] of the live rows of a step, without padded requests and with `num_padded`."""

    step: int
    num_padded: int
    unpadded: Tensor
    padded: Tensor


@dataclass(frozen=True, slots=True)
class WriteNote:
    """A stray write in step `step`: the memory, its site, its bytes before and after.

    `site` is None for memory that a request owns.
    """

    step: int
    name: str
    site: str | None
    before: Tensor
    after: Tensor


@dataclass(slots=True)
class Observations:
    """Notes by request number, filled by the runner. All but `newest` stay empty in an engine that does not observe.

    `logits[r]` has one row [vocab] for each generated token, `rejected[r]` one for each rejected draft.
    `expert_ids[r][p]` are the experts [L, k] of position p, `selected[r][p]` the positions [L, K] that it attended to
    in sparse layers. `routed` has the expert ids [T, k] of all rows of each forward, padded rows included.
    """

    logits: dict[int, list[Tensor]] = field(default_factory=dict)
    newest: NewestLogits | None = None
    expert_ids: dict[int, dict[int, Tensor]] = field(default_factory=dict)
    selected: dict[int, dict[int, Tensor]] = field(default_factory=dict)
    rejected: dict[int, list[Tensor]] = field(default_factory=dict)
    routed: list[Tensor] = field(default_factory=list)
    zeroed: list[ZeroedBlock] = field(default_factory=list)
    written: list[WriteNote] = field(default_factory=list)
    replays: list[ReplayNote] = field(default_factory=list)
    bindings: list[Binding] = field(default_factory=list)
    num_mixed_steps: int = 0
    """The number of batches with decodes and prompts."""
