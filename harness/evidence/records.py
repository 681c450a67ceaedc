"""What oracles are given, and what they return: runs with their evidence, and a judgement.

A target makes a `Run` and knows no oracle. An oracle reads the evidence and knows no target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from harness.core.finding_words import merged

if TYPE_CHECKING:
    from harness.core.cases import Case
    from harness.core.errors import Refused, SystemUnderTestError
    from harness.core.findings import Finding
    from harness.core.records import AccuracyRecord

KindT = TypeVar("KindT")


@dataclass(slots=True)
class Run:
    """The results of one execution of a case under one poison pattern."""

    pattern: str
    evidence: list[object] = field(default_factory=list)
    """Records of any kind, in the order in which the target made them.

    The files of `harness/evidence` define the kinds.
    """
    log: str = ""
    """The end of the output of a serving process."""
    launched: dict[str, int] = field(default_factory=dict)
    """How often each kernel was launched."""
    filled: dict[str, int] = field(default_factory=dict)
    """Site -> bytes that were filled in this process."""
    shown: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What `harness.core.conditions` read from the arguments of the judged call."""
    error: SystemUnderTestError | None = None
    """The error that ended the run early: an illegal address, or an exception of the kernel under
    test.
    """
    refusal: Refused | None = None
    """A refusal that came after there was other evidence.

    Unless that is a finding, the case is skipped.
    """

    def all(self, kind: type[KindT]) -> list[KindT]:
        """The records of one kind, in their order."""
        return [record for record in self.evidence if isinstance(record, kind)]

    def first(self, kind: type[KindT]) -> KindT | None:
        """The first record of a kind, or None without one."""
        return next(iter(self.all(kind)), None)


@dataclass(slots=True)
class Evidence:
    """The runs of a case, the main pattern first."""

    case: Case
    runs: list[Run]
    repeat: Callable[[], Run] | None = None
    """Runs the case under its first pattern once more, on a device that may not repeat its bits."""

    def all(self, kind: type[KindT]) -> list[tuple[KindT, str]]:
        """The records of one kind in all runs, each with the pattern of its run."""
        return [(record, run.pattern) for run in self.runs for record in run.all(kind)]


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
    """The result of a corrupted call: a Code."""
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
