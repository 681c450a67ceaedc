"""What a run of the engine leaves behind for its judges: logits, replays beside eager twins, addresses, experts."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, slots=True)
class ReplayNote:
    """Logits [B, vocab] of one replay of a graph of B rows, and of the same step run eagerly on a copy of memory.

    `eager_again` is a second eager run of the step, made on a GPU where the first is not the replay bit for bit.
    """

    step: int
    num_live: int
    replayed: Tensor
    eager: Tensor
    stale_plan: bool
    eager_again: Tensor | None = None


@dataclass(frozen=True, slots=True)
class BindingNote:
    """Where a graph of `size` captured an input, and where the engine updated that input before a replay."""

    step: int
    size: int
    name: str
    site: str
    captured_address: int
    current_address: int


@dataclass(frozen=True, slots=True)
class NewestLogits:
    """What the last step's tokens were chosen from: logits [n, vocab], row i of request `requests[i]`.

    A request whose prompt is not computed to its end got no token and has no row.
    """

    requests: tuple[int, ...]
    logits: Tensor


@dataclass(frozen=True, slots=True)
class ZeroNote:
    """A block that the scheduler told to zero in a step, and how many of its bytes were not zero when the step ran."""

    step: int
    block: int
    num_bytes: int
    num_dirty: int


@dataclass(frozen=True, slots=True)
class PaddingNote:
    """Logits [n, vocab] of the live rows of a step, with no padded request beside them and with `num_padded`."""

    step: int
    num_padded: int
    unpadded: Tensor
    padded: Tensor


@dataclass(frozen=True, slots=True)
class WriteNote:
    """Memory that somebody wrote after step `step` although nobody may: what it is, its site, bytes before and after.

    `site` is None for memory that a request owns and wrote itself.
    """

    step: int
    name: str
    site: str | None
    before: Tensor
    after: Tensor


@dataclass(slots=True)
class Observations:
    """Filled by the runner. Keys are request numbers, which are unique over the life of an engine.

    `logits[r]` has one row [vocab] for each generated token; `expert_ids[r][p]` the experts [L, k] of position p, and
    `selected[r][p]` the positions [L, K] that it attended to in sparse layers. `rejected[r]` has the rows [n, vocab] of
    drafts that were verified and not taken. `routed` has the expert ids [T, k] of every row of every forward, those of
    padding included.
    Both stay empty in an engine that does not observe; `newest` holds the last step in any.
    """

    logits: dict[int, list[Tensor]] = field(default_factory=dict)
    newest: NewestLogits | None = None
    expert_ids: dict[int, dict[int, Tensor]] = field(default_factory=dict)
    selected: dict[int, dict[int, Tensor]] = field(default_factory=dict)
    rejected: dict[int, list[Tensor]] = field(default_factory=dict)
    routed: list[Tensor] = field(default_factory=list)
    zeroed: list[ZeroNote] = field(default_factory=list)
    written: list[WriteNote] = field(default_factory=list)
    replays: list[ReplayNote] = field(default_factory=list)
    bindings: list[BindingNote] = field(default_factory=list)
    num_eager_steps: int = 0
    num_mixed_steps: int = 0
    """Steps whose batch held decodes and prompts."""
