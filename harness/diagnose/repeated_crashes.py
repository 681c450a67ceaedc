"""Crashes that a user's kernel repeats from case to case: after three alike, its other cases would
show nothing new.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

from harness.core.cases import Job
from harness.core.catalog import KERNELS
from harness.core.cause_codes import Code
from harness.core.records import CaseResult, Verdict

MOST_ALIKE = 3
"""Crashes of one kernel, at one line and for one cause, after which its other cases are left out.
"""


class RepeatedCrashes:
    """Counts the crashes of users' kernels.

    A kernel that an engine or the harness brings runs all its cases.
    """

    def __init__(self) -> None:
        self._seen: Counter[tuple[str, ...]] = Counter()

    def left_out_after(
        self, job: Job, result: CaseResult, waiting: deque[Job]
    ) -> Iterator[CaseResult]:
        """Note how `job` ended.

        If its crash was seen often enough, take all `waiting` jobs of its kernel out.

        Yields their results.
        """
        # Without a line two crashes may have different causes.
        if result.verdict is not Verdict.CRASH or not result.findings or not result.findings[0].at:
            return
        crash = result.findings[0]
        kernel = crash.kernel or next(iter(_kernels_of(job)), "")
        # Another kernel of the case crashed, such as a reference or an engine's.
        if kernel not in _kernels_of(job):
            return
        # A loop without end is caught at any of its lines.
        kind = (kernel, "" if result.has_hung else crash.at, crash.cause, crash.error)
        self._seen[kind] += 1
        if self._seen[kind] < MOST_ALIKE:
            return
        why = f"{crash.error or crash.cause} at {crash.at}"
        reason = (
            f"left out: {kernel} crashed {self._seen[kind]} times by {why}; mend that first, or add"
            " --keep-going"
        )
        for other in [other for other in waiting if kernel in _kernels_of(other)]:
            waiting.remove(other)
            yield CaseResult.of(other, Verdict.SKIP, reason=reason, cause=Code.LEFT_OUT)


def _kernels_of(job: Job) -> list[str]:
    """The kernels of a user, as `op/name`, that the id of the case names."""
    named = [job.case.kernels()[field] for field in job.case.named]
    return [
        name for name in named if job.plugins or (name in KERNELS and KERNELS.get(name).is_plugin)
    ]
