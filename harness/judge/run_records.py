"""What a target hands to the oracles. An oracle knows these records and no target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from harness.accuracy.answer_log import AccuracyRun
from harness.core.cases import Case
from harness.core.records import AccuracyRecord, Finding


@dataclass(slots=True)
class Observed:
    """A tensor to judge. Its dim 0 counts rows; only rows with `live[row]` promise anything.

    `expected` is float64 of the same shape, or None when no reference exists; `bound` names a row of the
    tolerance table. `describe` turns a row number into words such as "request 2, query token 0".
    """

    name: str
    tensor: torch.Tensor
    live: torch.Tensor
    expected: torch.Tensor | None = None
    bound: str = ""
    describe: str = "row"
    site: str | None = None
    """The site to name when a non-finite value here is no poison's: the kind of row it stands in."""

    @property
    def num_live_elements(self) -> int:
        """How many elements of `tensor` stand in live rows."""
        return int(self.live.sum()) * self.tensor[:1].numel()


@dataclass(slots=True)
class Guard:
    """Memory that nobody may write during the run: equal bytes before and after."""

    name: str
    site: str | None
    before: torch.Tensor
    after: torch.Tensor


@dataclass(slots=True)
class ReplayedStep:
    """One replay of a captured graph beside the same step run eagerly on a copy of the same memory."""

    step: int
    name: str
    replayed: torch.Tensor
    eager: torch.Tensor
    live: torch.Tensor
    eager_again: torch.Tensor | None = None
    """A second eager run, where the first differs and the device may not repeat its bits."""
    stale_site: str | None = None
    """The site of a captured input whose content differed from what the eager step read, if one did."""


@dataclass(slots=True)
class Binding:
    """Where a captured graph reads one of its inputs, and where the engine updated that input in this step."""

    step: int
    name: str
    site: str
    captured_address: int
    current_address: int


@dataclass(slots=True)
class Pair:
    """The same answers twice, from two conditions of the caches; `oracle` is the name of who judges them."""

    oracle: str
    name: str
    first: torch.Tensor
    second: torch.Tensor
    live: torch.Tensor
    bound: str
    describe: str = "row"


@dataclass(slots=True)
class ZeroedBlock:
    """A block that the engine was told to zero before use, and how many of its bytes were not zero at its use."""

    step: int
    block: int
    num_bytes: int
    num_dirty: int


@dataclass(slots=True)
class ChosenExperts:
    """Expert ids [T, k] of every token that was routed, padding included; a row of -1 was masked. X experts exist."""

    name: str
    ids: torch.Tensor
    num_experts: int


@dataclass(slots=True)
class Run:
    """Everything that one execution of a case under one poison pattern produced."""

    pattern: str
    observed: list[Observed] = field(default_factory=list)
    guards: list[Guard] = field(default_factory=list)
    replays: list[ReplayedStep] = field(default_factory=list)
    bindings: list[Binding] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    zeroed: list[ZeroedBlock] = field(default_factory=list)
    chosen: list[ChosenExperts] = field(default_factory=list)
    accuracy: AccuracyRun | None = None
    """Every question's result in every epoch, where the target answers questions."""
    eager: AccuracyRun | None = None
    """The same questions asked of the same engine without graphs, where the target compares both."""
    log: str = ""
    """The end of what a serving process printed."""
    error: Exception | None = None
    """What ended the run before its end: an illegal address, or what the kernel under test raised."""


@dataclass(slots=True)
class Evidence:
    """The runs of a case, the main pattern first."""

    case: Case
    runs: list[Run]
    repeat: Callable[[], Run] | None = None
    """Runs the case under its first pattern once more; given where a device may not repeat its bits."""


@dataclass(slots=True)
class Judgement:
    """An oracle's findings, and how many elements it looked at: nothing looked at is an error, not a pass."""

    findings: list[Finding] = field(default_factory=list)
    looked_at: int = 0
    notes: list[str] = field(default_factory=list)
    """What a reader of a pass should know, such as a spread that was allowed for."""
    accuracy: AccuracyRecord | None = None
    """What oracle `accuracy` counted, for the reports; no other oracle has one."""
