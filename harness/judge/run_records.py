"""The records that a target gives to the oracles, and the outcome of a case.

An oracle knows no target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields

import torch

from harness.accuracy.answer_log import AccuracyRun
from harness.core.cases import Case, Job
from harness.core.cause_codes import Code
from harness.core.corruptions import Corruption
from harness.core.errors import Refused, SystemUnderTestError
from harness.core.finding_words import merged
from harness.core.records import AccuracyRecord, CaseResult, Finding, FirstNan, Verdict
from harness.judge.decisions import Decisions, Divergence
from harness.kernels.process_state import Change
from harness.memory.moves.checks import Misplaced
from harness.memory.moves.streams import Race


@dataclass(slots=True)
class Observed:
    """A tensor to judge. Dim 0 counts rows. Only rows with `live[row]` promise anything.

    `expected` is float64 of the same shape, or None without a reference. `bound` names a row of the
    tolerance table. `describe` is the word for a row, such as "request".
    """

    name: str
    tensor: torch.Tensor
    live: torch.Tensor
    expected: torch.Tensor | None = None
    bound: str = ""
    describe: str = "row"
    site: str | None = None
    """The site to name for a value without a site in its bits: a NaN that is no sentinel, or an
    index of the poison.
    """
    decisions: tuple[Decisions, ...] = ()
    """The decisions of the requests in the order of the rows, if the rows depend on decisions."""
    tokens: torch.Tensor | None = None
    """The token [rows] that was taken from each row of logits."""
    slack: torch.Tensor | None = None
    """What the bound allows an element at least, float64 of the same shape: roundings that the case
    makes large.
    """

    @property
    def num_live_elements(self) -> int:
        return int(self.live.sum()) * self.tensor[:1].numel()


@dataclass(slots=True)
class Guard:
    """Memory that must hold the same bytes before and after the run."""

    name: str
    site: str | None
    before: torch.Tensor
    after: torch.Tensor
    row_name: Callable[[int], str] | None = None
    """The name of a row, if its number says nothing: "page 7 of layer 2"."""


@dataclass(slots=True)
class ReplayedStep:
    """One replay of a captured graph beside the same step run eagerly on a copy of the same
    memory.
    """

    step: int
    name: str
    replayed: torch.Tensor
    eager: torch.Tensor
    live: torch.Tensor
    eager_again: torch.Tensor | None = None
    """A second eager run, if the first differs and the device may not repeat its bits."""
    stale_site: str | None = None
    """The site of a captured input that differed from the input of the eager step."""
    stale: str = ""
    """The part of the graph that read memory without an owner, the tensor, and who wrote it last.
    """
    inputs: tuple[int, ...] = ()
    """A number for what each live row was computed from; empty if each replay has inputs of its
    own.
    """


@dataclass(frozen=True, slots=True)
class Binding:
    """The address where a captured graph reads an input, and the address that the engine updated
    before a replay.
    """

    step: int
    name: str
    site: str
    captured_address: int
    current_address: int


@dataclass(frozen=True, slots=True)
class ZeroedBlock:
    """A block that the scheduler listed for zeroing, and how many of its bytes were not zero when
    the step ran.
    """

    step: int
    block: int
    num_bytes: int
    num_dirty: int


@dataclass(frozen=True, slots=True)
class Count:
    """A number that must be kept: the blocks of a pool, the tokens of a request.

    `oracle` judges it.
    """

    name: str
    expected: int | str
    found: int | str
    where: str = ""
    oracle: str = "conserved"
    """`policy` for a choice that another right engine may make otherwise."""


@dataclass(slots=True)
class Pair:
    """The same answers twice, from two conditions of the caches; `oracle` names the oracle that
    judges them.

    No live row depends on the decision of the `divergence`, if there is one.
    """

    oracle: str
    name: str
    first: torch.Tensor
    second: torch.Tensor
    live: torch.Tensor
    bound: str
    describe: str = "row"
    divergence: Divergence | None = None


@dataclass(slots=True)
class ChosenExperts:
    """Expert ids [T, k] of all routed tokens, padding included. A row of -1 was masked."""

    name: str
    ids: torch.Tensor
    num_experts: int


@dataclass(slots=True)
class Moved:
    """What one schedule of a case showed: it moves its cache, or delays streams.

    `num_bytes` were read, `num_pairs` of accesses compared. `order` says how the schedule was made.
    Races name `site`.
    """

    num_bytes: int
    num_pairs: int
    misplaced: list[Misplaced]
    races: list[Race]
    order: str = ""
    site: str | None = "move.late"


@dataclass(slots=True)
class CorruptedCall:
    """A call with a corrupted argument: its error, or what was `seen` of its result.

    Unless the call `is_judged`, neither the contract nor the kernel promises anything for it.
    """

    corruption: Corruption
    is_judged: bool
    seen: Run
    error: SystemUnderTestError | Refused | None = None

    @property
    def has_fault(self) -> bool:
        """Whether the device failed, so that no other call can be made."""
        return isinstance(self.error, SystemUnderTestError) and self.error.cause is Code.DEVICE

    @property
    def crash(self) -> SystemUnderTestError | None:
        """The failure of the device, if the call is judged."""
        is_crash = self.has_fault and self.is_judged
        return self.error if is_crash and isinstance(self.error, SystemUnderTestError) else None


@dataclass(slots=True)
class Run:
    """The results of one execution of a case under one poison pattern."""

    pattern: str
    observed: list[Observed] = field(default_factory=list)
    guards: list[Guard] = field(default_factory=list)
    replays: list[ReplayedStep] = field(default_factory=list)
    bindings: list[Binding] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    zeroed: list[ZeroedBlock] = field(default_factory=list)
    chosen: list[ChosenExperts] = field(default_factory=list)
    moved: list[Moved] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    corrupted: list[CorruptedCall] = field(default_factory=list)
    events: dict[str, int] = field(default_factory=dict)
    """How often each event of an engine happened."""
    accuracy: AccuracyRun | None = None
    """The result of every question in every epoch, if the target answers questions."""
    least_accuracy: float | None = None
    """The least share of right answers that the case allows, for oracle `answers`."""
    eager: AccuracyRun | None = None
    """The same questions to the same engine without graphs, if the target compares both."""
    scripts: list[CaseResult] = field(default_factory=list)
    """What scripts of requests found, if the target serves over HTTP."""
    log: str = ""
    """The end of the output of a serving process."""
    launched: dict[str, int] = field(default_factory=dict)
    """How often each kernel was launched."""
    filled: dict[str, int] = field(default_factory=dict)
    """Site -> bytes that were filled in this process."""
    allocated: dict[str, list[str]] = field(default_factory=dict)
    """Site -> the lines of the engine's code that allocated memory of it and left some unwritten,
    where known.
    """
    shown: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What `harness.core.conditions` read from the arguments of the judged call."""
    changes: list[Change] = field(default_factory=list)
    """What plug-ins left changed in this process."""
    error: SystemUnderTestError | None = None
    """The error that ended the run early: an illegal address, or an exception of the kernel under
    test.
    """
    refusal: Refused | None = None
    """What was refused after there was other evidence.

    Unless that is a finding, the case is skipped.
    """


@dataclass(slots=True)
class Evidence:
    """The runs of a case, the main pattern first."""

    case: Case
    runs: list[Run]
    repeat: Callable[[], Run] | None = None
    """Runs the case under its first pattern once more, on a device that may not repeat its bits."""


@dataclass(slots=True)
class Judgement:
    """An oracle's findings, and the number of elements it looked at.

    With 0 the case is an error, not a pass.
    """

    findings: list[Finding] = field(default_factory=list)
    looked_at: int = 0
    notes: list[str] = field(default_factory=list)
    """Remarks on a pass, such as an allowed spread."""
    cause: str = ""
    """What a corrupted call came to: a Code."""
    accuracy: AccuracyRecord | None = None
    """The counts of oracle `accuracy` for the reports; None for other oracles."""

    @classmethod
    def of(cls, looks: Iterable[tuple[int, Iterable[Finding]]]) -> Judgement:
        """Add up looks: each has its number of elements, and its findings.

        Joins findings that are alike.
        """
        looked_at = 0
        findings: list[Finding] = []
        for count, found in looks:
            looked_at += count
            findings.extend(found)
        return cls(merged(findings), looked_at)


@dataclass(slots=True)
class Outcome:
    """The answer to what a job asks."""

    verdict: Verdict
    reason: str = ""
    cause: str = ""
    """Why it proves nothing: a Code."""
    at: str = ""
    """The line that raised an error of the harness."""
    findings: list[Finding] = field(default_factory=list)
    looked_at: dict[str, int] = field(default_factory=dict)
    accuracy: AccuracyRecord | None = None
    log: str = ""
    first_nan: FirstNan | None = None
    launched: dict[str, int] = field(default_factory=dict)
    """How often the main run launched each kernel."""
    runs: list[Run] = field(default_factory=list)
    filled: dict[str, int] = field(default_factory=dict)
    shown: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def result_of(self, job: Job, seconds: float) -> CaseResult:
        found = {
            field.name: getattr(self, field.name) for field in fields(self) if field.name != "runs"
        }
        found |= {
            "findings": tuple(self.findings),
            "accuracy": self.accuracy and self.accuracy.but(fault=job.fault),
        }
        return CaseResult.of(job, seconds=seconds, **found)
