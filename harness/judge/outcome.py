"""What running a case found out: the part of a result that does not name the job."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.core.cases import Job
from harness.core.records import AccuracyRecord, CaseResult, Finding, FirstNan, Verdict

LOG_TAIL = 4000
"""Characters of a traceback that a result keeps."""


@dataclass(slots=True)
class Outcome:
    """The answer to what a job asks."""

    verdict: Verdict
    reason: str = ""
    findings: list[Finding] = field(default_factory=list)
    looked_at: dict[str, int] = field(default_factory=dict)
    accuracy: AccuracyRecord | None = None
    log: str = ""
    first_nan: FirstNan | None = None

    def result_of(self, job: Job, seconds: float) -> CaseResult:
        """The result of `job`."""
        return CaseResult.of(
            job,
            self.verdict,
            seconds=seconds,
            reason=self.reason,
            findings=tuple(self.findings),
            looked_at=self.looked_at,
            accuracy=self.accuracy and self.accuracy.model_copy(update={"fault": job.fault}),
            log=self.log,
            first_nan=self.first_nan,
        )
