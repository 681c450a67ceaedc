"""Kernels that compile on their first call: one worker compiles, and the others run something else until then."""

from __future__ import annotations

from collections.abc import Iterable

from harness.core.cases import Job
from harness.core.catalog import KERNELS
from harness.core.cause_codes import Code
from harness.core.records import CaseResult, Verdict


class Compiling:
    """Which kernels still have to be compiled. A second worker would wait for the compiler's lock."""

    def __init__(self) -> None:
        self._compiled: set[str] = set()

    def _kernels_of(self, job: Job) -> set[str]:
        """The kernels of a job that still have to be compiled."""
        names = {name for name in job.case.kernels().values() if name in KERNELS}
        return {name for name in names if KERNELS.get(name).compile_seconds} - self._compiled

    def must_wait(self, job: Job, running: Iterable[Job]) -> bool:
        """Whether a running job compiles a kernel of this one."""
        kernels = self._kernels_of(job)
        return bool(kernels) and any(kernels & self._kernels_of(other) for other in running)

    def end(self, job: Job, result: CaseResult, waiting: Iterable[Job]) -> dict[str, CaseResult]:
        """Note that a job has ended. After a time limit: the results of waiting jobs with its kernels, by key."""
        kernels = self._kernels_of(job)
        self._compiled |= kernels
        if not kernels or not any(finding.cause == Code.TIME_LIMIT for finding in result.findings):
            return {}
        names, seconds = ", ".join(sorted(kernels)), job.timeout_seconds
        reason = f"not started: the first call of {names}, in {job.case.id}, did not end within {seconds:.0f} s"
        left = [other for other in waiting if not kernels.isdisjoint(other.case.kernels().values())]
        return {other.key: CaseResult.of(other, Verdict.ERROR, reason=reason) for other in left}
