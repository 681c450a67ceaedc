"""The records that stages exchange: plain, frozen, and the same in memory and on disk."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from pydantic import Field

from harness.core.cases import Case, Job, KnownFailure
from harness.core.cause_codes import Code
from harness.core.fault_outcomes import fault_outcome
from harness.core.findings import Finding
from harness.core.params import Record

SCHEMA_VERSION = 2
"""The form of the files of a run. It rises when an older run cannot be read as it was meant."""

Interval = tuple[float, float]


class Verdict(str, Enum):
    """How a case ended.

    `skip` is never a pass, `error` is the harness's own fault, and `known` is a known failure.

    A planned case of a run that ended before has no stored result; reports give it `not-run`.
    """

    PASS = "pass"
    FAIL = "fail"
    CRASH = "crash"
    SKIP = "skip"
    ERROR = "error"
    KNOWN = "known"
    NOT_RUN = "not-run"


FAILED = (Verdict.FAIL, Verdict.CRASH)
BAD = (*FAILED, Verdict.ERROR)


class Flips(Record):
    """How the answers of one epoch differ from the answers of its reference, question by
    question.
    """

    reference: str
    num_shared: int
    lost: int
    gained: int
    p_value: float = Field(description="exact McNemar, two-sided")


class EpochAccuracy(Record):
    """One epoch, counted over all its questions, unanswered ones included."""

    epoch: int
    num_questions: int
    num_correct: int
    accuracy: float
    interval: Interval = Field(description="Wilson, 95 %")
    unanswered: int = 0
    empty: int = 0
    unparsed: int = 0
    invalid_tokens: int = 0
    retried: int = 0
    num_tokens: int = 0
    unanswered_reasons: dict[str, int] = Field(
        default={}, description="reason -> how many questions"
    )
    flips: Flips | None = Field(
        default=None, description="against the baseline, or else the first epoch"
    )
    changed: int = Field(default=0, description="answers whose text differs from the first epoch's")


class BaselineUse(Record):
    """The baseline that a run was compared to."""

    name: str
    accuracy: float
    interval: Interval
    num_shared: int

    @property
    def num_correct(self) -> int:
        """How many of the shared questions it has right."""
        return round(self.accuracy * self.num_shared)


class AccuracyLimits(Record):
    """Limits that fail a run, whatever its accuracy. Shares of all questions; None is no limit."""

    unanswered: float | None = 0.01
    empty: float | None = 0.01
    unparsed: float | None = Field(default=0.5, description="an unreadable answer measures nothing")
    invalid_tokens: float | None = 0.0
    accuracy: float | None = Field(
        default=None, description="the least accuracy of an epoch; None asks for none"
    )
    flips: int | None = Field(
        default=None, description="between epochs; None means 0 on a deterministic engine"
    )
    alpha: float = Field(
        default=0.05, gt=0, lt=1, description="chance of a false alarm, over all tests of the run"
    )


class AccuracyReason(Record):
    """What one reason of a verdict is about: its code, and its epoch, or 0 for all epochs."""

    cause: str
    epoch: int = 0


class AccuracyJudgement(Record):
    """The verdict of a run with its reasons."""

    verdict: Verdict
    statement: str = Field(description="one sentence for people")
    least: float | None = Field(
        default=None, description="the least accuracy that was asked of each epoch"
    )
    reasons: tuple[str, ...] = ()
    kinds: tuple[AccuracyReason, ...] = Field(default=(), description="one for each reason")
    p_value: float | None = Field(
        default=None, description="the smallest of the run's tests, Bonferroni-adjusted"
    )
    trend_p_value: float | None = Field(
        default=None, description="Wilcoxon signed-rank on each question's slope"
    )
    num_tests: int = 0
    smallest_drop: float | None = Field(
        default=None, description="the drop seen with 80 % power; None: no drop can be"
    )
    num_flips: int = Field(
        default=0, description="questions that changed between right and wrong from the first epoch"
    )


class OutcomeGrid(Record):
    """The per-question grid: one string an epoch, one character a question in the task's order.

    `1` right, `0` wrong, `u` unanswered, `e` empty, `p` did not parse, `i` invalid tokens, `.` not
    asked yet.
    """

    questions: tuple[str, ...]
    rows: tuple[str, ...]
    baseline: str = Field(default="", description="the same for the baseline; empty without one")


class AccuracyRecord(Record):
    """One entry of `accuracy` in summary.json."""

    schema_version: int = 1
    scenario: str = ""
    case: str = ""
    fault: str | None = None
    task: str
    model: str
    model_hash: str
    engine: str
    dtype: str
    seed: int
    note: str = ""
    filter: str = ""
    epochs: tuple[EpochAccuracy, ...]
    ci: tuple[Interval, ...] = Field(description="the intervals of the epochs, in their order")
    baseline: BaselineUse | None = None
    verdict: Verdict
    judgement: AccuracyJudgement
    grid: OutcomeGrid
    seconds: float = 0.0


class FirstNan(Record):
    """The first launch that wrote a value that is not finite, and the first that read the memory to
    blame.
    """

    writer: str = Field(
        default="", description="the op or module; empty: every watched live value was finite"
    )
    tensor: str = ""
    layer: int | None = None
    step: int | None = None
    phase: str = Field(default="", description="prefill, decode or mixed; forward if unknown")
    rank: int = 0
    request: str = ""
    where: str = Field(default="", description="row and element of the row")
    bits: str = ""
    bad: str = Field(default="not finite", description="what was wrong with the value")
    is_input: bool = Field(
        default=False, description="the value is an input of `writer`, so it was made just before"
    )
    finite: tuple[str, ...] = Field(default=(), description="finite inputs of `writer`")
    not_finite: tuple[str, ...] = Field(
        default=(), description="its other values that were not finite"
    )
    not_watched: tuple[str, ...] = ()
    before: str = Field(default="", description="the last watched output before it")
    after: tuple[str, ...] = Field(
        default=(), description="the next bad outputs in the same step, in order"
    )
    num_ranks: int = Field(default=1, description="number of ranks; this one wrote first")
    other_ranks: tuple[str, ...] = Field(
        default=(), description="the statements of the other ranks"
    )
    missing_report: str = Field(
        default="",
        description="why a rank sent no report",
    )
    reader: str = Field(
        default="", description="the first launch whose live result depends on memory of `sites`"
    )
    reader_at: str = Field(default="", description="its tensor and step")
    sites: tuple[str, ...] = Field(default=(), description="the memory to blame")
    stage: str = Field(
        default="", description="the first stage that leaves its reference on inputs that agree"
    )
    stage_site: str = Field(default="", description="the memory of that stage, if it has one")

    @property
    def statement(self) -> str:
        """One sentence: the writer, the value, the place, the time, and what was still finite."""
        if not self.writer:
            return self.missing_report or "all watched live values were finite"
        layer = f"layer {self.layer}" if self.layer is not None else ""
        request = f"request {self.request}" if self.request else ""
        only_rank = f"rank {self.rank}" if self.rank and self.num_ranks == 1 else ""
        bits = f"bits {self.bits}" if self.bits else ""
        places = (layer, f"step {self.step} ({self.phase})", request, only_rank, self.where, bits)
        rank = f"rank {self.rank}: " if self.num_ranks > 1 else ""
        verb = "was given" if self.is_input else "wrote"
        good = ", ".join(self.finite) or self.before
        clauses = (
            (
                f"{rank}{self.writer} {verb} {self.tensor}, {self.bad}:"
                f" {', '.join(filter(None, places))}"
            ),
            f"still good: {good}" if good else "",
            f"not good: {', '.join(self.not_finite)}" if self.not_finite else "",
            f"not watched: {', '.join(self.not_watched)}" if self.not_watched else "",
            self.missing_report,
        )
        return "; ".join(filter(None, clauses))

    @classmethod
    def of_ranks(cls, reports: Sequence[FirstNan]) -> FirstNan:
        """The report of the rank that wrote first, with the reports of the other ranks.

        `reports` has one a rank.

        Ranks run the same program, so the earliest step is first. Within a step, a rank is earlier
        if another rank's first writer was hit on it after its own: a NaN travels through the next
        collective. The lower rank wins a tie. Raises ValueError without reports.
        """
        ranked = sorted(reports, key=lambda report: report.rank)
        hit = [report for report in ranked if report.writer]
        # Steps count the same on all ranks, and time does not.
        first = min((report.step or 0 for report in hit), default=0)
        earliest = [report for report in hit if report.step == first]

        def num_later(report: FirstNan) -> int:
            """How many other ranks have a first writer that was hit on this rank after its own."""
            return sum(f"{other.writer} {other.tensor}" in report.after for other in earliest)

        found = max(earliest, key=num_later, default=ranked[0])
        others = tuple(report.of_one_rank for report in ranked if report is not found)
        return found.model_copy(update={"num_ranks": len(ranked), "other_ranks": others})

    @property
    def of_one_rank(self) -> str:
        """The statement with the number of the rank in front."""
        # `statement` names the rank only where there are several.
        statement = self.model_copy(update={"num_ranks": 2}).statement
        return statement if self.writer else f"rank {self.rank}: {statement}"


class CaseResult(Record):
    """The result of one job. Every planned job has exactly one."""

    schema_version: int = SCHEMA_VERSION
    key: str
    id: str
    scenario: str
    refs: tuple[str, ...] = ()
    fault: str | None = None
    sites: tuple[str, ...] | None = None
    verdict: Verdict
    seconds: float = 0.0
    cpu_seconds: float = Field(
        default=0.0,
        description=(
            "processor time of the worker. Unlike `seconds`, a busy machine does not stretch it"
        ),
    )
    reason: str = ""
    cause: str = Field(
        default="",
        description="why it proves nothing, or what it came to: a Code",
    )
    at: str = Field(default="", description="the line that raised an error of the harness")
    findings: tuple[Finding, ...] = ()
    looked_at: dict[str, int] = Field(default={})
    """Elements that each oracle judged. An oracle without elements makes the case an error."""
    launched: dict[str, int] = Field(default={})
    """How often the run under the main pattern launched each kernel."""
    filled: dict[str, int] = Field(default={})
    """Site -> bytes that the first run of the case filled. Empty if another process filled them."""
    shown: dict[str, tuple[str, ...]] = Field(default={})
    """Op and mark of its conditions -> the points of the main run's call, coded as by
    `Space.coded`.
    """
    lacks: dict[str, str] = Field(default={})
    """What a skipped case would need here -> the command that brings it, or nothing."""
    accuracy: AccuracyRecord | None = None
    """Accuracy by epoch, for a case that measures it."""
    log: str = ""
    """What the worker printed, and then the traceback, kept for failures, crashes and errors."""
    lost_nodes: tuple[str, ...] = ()
    """Machines of a cluster that were lost while they ran it.

    After each loss it ran again elsewhere.
    """
    first_nan: FirstNan | None = None
    """What the recorder saw, for a job that was run with it."""
    known: KnownFailure | None = None
    """The known failure that decided the verdict: the case failed as expected, or passed although
    it should fail.
    """

    @classmethod
    def of(cls, job: Job, verdict: Verdict, **more: Any) -> CaseResult:
        """The result of `job`. Names come from the job, `more` are the other fields."""
        case = job.case
        names = {
            "key": job.key,
            "id": case.id,
            "scenario": case.scenario,
            "refs": case.refs,
            "fault": job.fault,
        }
        return cls(**names, sites=job.sites, verdict=verdict, **more)

    @property
    def is_refused(self) -> bool:
        """Whether the kernel itself refused the case.

        Any other skip is for a reason of the harness or the machine.
        """
        return self.verdict is Verdict.SKIP and self.cause == Code.KERNEL_REFUSED

    @property
    def has_failed(self) -> bool:
        """Whether the case failed or crashed, with a finding that says why."""
        return self.verdict in FAILED and bool(self.findings)

    @property
    def has_hung(self) -> bool:
        """Whether a time limit ended it."""
        return any(finding.cause == Code.TIME_LIMIT for finding in self.findings)


class Blame(Record):
    """Which memory was to blame for a failure, and how that was found."""

    sites: tuple[str, ...] = ()
    cause: str = Field(default="", description="how it was found: a Code")
    how: str = ""
    trials: dict[str, str] = Field(default={})
    """Poisoned sites -> verdict of that trial, in the order of the trials."""
    first_nan: FirstNan | None = None
    """The first writer of a NaN and the first reader of the memory, if launches can be traced."""

    @property
    def is_decided(self) -> bool:
        """Whether it is known which memory is to blame, or that none is.

        Trials that did not end tell neither.
        """
        return bool(self.sites) or self.cause not in (Code.OUT_OF_TIME, Code.NOT_SOUGHT)


class ShrinkStep(Record):
    """One accepted step towards the smallest failing case. Values are written as in a case id."""

    what: str
    before: str
    after: str
    tried: int = Field(
        default=0, description="trials made for this step, the accepted one included"
    )


class Shrunk(Record):
    """The smallest case that still fails for the same reason, and the steps to it."""

    schema_version: int = SCHEMA_VERSION
    key: str
    id: str
    fault: str | None = None
    case: Case = Field(description="the smallest; its id alone reproduces it")
    oracle: str
    sites: tuple[str, ...] = Field(default=(), description="the memory to blame")
    finding: Finding = Field(description="what the oracle saw in the smallest case")
    steps: tuple[ShrinkStep, ...] = ()
    num_trials: int = 0
    seconds: float = 0.0
    is_smallest: bool = Field(
        default=False, description="false: the time was up before every smaller case was tried"
    )


class OptionSet(Record):
    """Options of an engine that fail together, with the smallest case that shows it."""

    options: dict[str, Any] = Field(description="what differs from the plain combination")
    case: Case
    result: CaseResult
    keys: tuple[str, ...] = Field(
        default=(), description="the failing jobs that have all of these options"
    )
    num_trials: int = 0
    is_smallest: bool = Field(
        default=False, description="false: the time was up before each option was set back"
    )


class FaultResult(Record):
    """Whether one injected fault was seen, and whether the blame is the declared one."""

    schema_version: int = SCHEMA_VERSION
    fault: str
    scenario: str
    case: str
    ref: str = ""
    seen: bool = Field(
        default=False, description="a declared oracle fires with the fault, and not without it"
    )
    caught: bool = Field(description="it was seen, and the blame is as declared")
    by: tuple[str, ...] = ()
    blamed: tuple[str, ...] = ()
    expected_by: tuple[str, ...] = Field(description="one of these oracles had to fire")
    expected_blame: tuple[str, ...] = Field(
        default=(), description="the sites that had to be blamed"
    )
    allowed_blame: tuple[str, ...] = Field(
        default=(), description="further sites that could be blamed, or not"
    )
    seconds: float = 0.0
    reason: str = ""
    how: str = ""
    findings: tuple[Finding, ...] = ()
    accuracy: AccuracyRecord | None = None
    """The accuracy with the fault, if it was tried on a measurement of accuracy."""

    @property
    def outcome(self) -> str:
        """CAUGHT, WRONG_BLAME or MISSED."""
        return fault_outcome(caught=self.caught, seen=self.seen)
