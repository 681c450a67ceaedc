"""What a job came to: its verdict, with the runs that it was judged by."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from harness.core.cases import Job
from harness.core.findings import Finding
from harness.core.records import AccuracyRecord, CaseResult, FirstNan, Verdict
from harness.evidence.records import Run


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
    lacks: dict[str, str] = field(default_factory=dict)

    def result_of(self, job: Job, seconds: float) -> CaseResult:
        found = {
            field.name: getattr(self, field.name) for field in fields(self) if field.name != "runs"
        }
        found |= {
            "findings": tuple(self.findings),
            "accuracy": self.accuracy and self.accuracy.but(fault=job.fault),
        }
        return CaseResult.of(job, seconds=seconds, **found)
