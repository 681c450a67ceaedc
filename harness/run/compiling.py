"""Kernels that compile on their first call: one worker compiles, and the others run something else
until then.
"""

from __future__ import annotations

from collections.abc import Iterable

from harness.core.cases import Job
from harness.core.records import CaseResult, Verdict


class Compiling:
    """Which kernels still have to be compiled.

    A second worker would wait for the compiler's lock.
    """

    def __init__(self) -> None:
        self._compiled: set[str] = set()

    def must_wait(self, job: Job, running: Iterable[Job]) -> bool:
        kernels = job.case.compile_seconds().keys() - self._compiled
        return bool(kernels) and any(
            kernels & other.case.compile_seconds().keys() for other in running
        )

    def end(
        self, job: Job, result: CaseResult, waiting: Iterable[Job]
    ) -> list[tuple[Job, CaseResult]]:
        """Note that a job has ended.

        After a time limit: the waiting jobs with its kernels, and their results.
        """
        kernels = job.case.compile_seconds().keys() - self._compiled
        # Also after a time limit: the kernels that did not compile are given up below, not tried
        # again.
        self._compiled |= kernels
        if not kernels or not result.has_hung:
            return []
        names = ", ".join(sorted(kernels))
        seconds = job.timeout_seconds
        reason = (
            f"not started: the first call of {names}, in {job.case.id}, did not end within"
            f" {seconds:.0f} s"
        )
        left = [other for other in waiting if not kernels.isdisjoint(other.case.kernels().values())]
        return [(other, CaseResult.of(other, Verdict.ERROR, reason=reason)) for other in left]
