"""Cases that need not run, because cases before them crashed for the same reason. The rule stands above the pools."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from functools import cache

from harness.core.cases import AskVerdict, Job
from harness.core.cause_codes import Code
from harness.core.op_params import KERNEL_PARAMS
from harness.core.params import Params
from harness.core.records import CaseResult, Verdict
from harness.core.shapes import RESIZABLE, SIZES, sizes_of

MOST_ALIKE = 3
"""Crashes in a row for one reason, after which the rest of a group is not run."""


class CrashGroups:
    """Holds waiting cases back after crashes, for one run. `mla-harness run --exhaustive` does without it.

    A group is a scenario with the same kernels on the same device. After MOST_ALIKE crashes in a row with the same
    cause, error and line of code, the rest of the group is not run. "In a row" is by the order in which
    results come, and a skipped case is no result. A kernel that runs at DeepSeek's sizes only, and does not declare it
    (UNDECLARED_SHAPES), is not run again at other sizes, in any scenario.

    Trials, cases with an injected bug, cases with a known failure, and cases that name no kernel
    neither count nor are held back.
    """

    def __init__(self, jobs: Iterable[Job], results: Iterable[CaseResult] = ()) -> None:
        """`jobs` are all jobs of the run. `results` are stored results of a run that is continued."""
        self._jobs = {job.key: job for job in jobs if _is_plain(job)}
        self._keys = {
            key: ((job.case.scenario, job.device, *_kernels(job)), *_of_other_sizes(job))
            for key, job in self._jobs.items()
        }
        self._streaks: dict[Hashable, tuple[list[Hashable], str, int]] = {}
        self._why: dict[Hashable, str] = {}
        self._news = False
        for result in results:
            self.note(result)

    def note(self, result: CaseResult) -> None:
        job = self._jobs.get(result.key)
        if job is None or result.verdict is Verdict.SKIP:
            return
        (group, *other_sizes), kernels = self._keys[job.key], ", ".join(_kernels(job))
        if result.verdict is Verdict.CRASH:
            reason: list[Hashable] = [(one.cause, one.error, one.kernel, one.at) for one in result.findings]
            before, first, count = self._streaks.get(group, ([], "", 0))
            first, count = (first, count + 1) if reason == before else (result.id, 1)
            self._streaks[group] = (reason, first, count)
            if count >= MOST_ALIKE:
                self._hold(
                    group,
                    f"{MOST_ALIKE} cases before it crashed in {kernels} with the same reason ({first}); "
                    "--exhaustive runs it",
                )
        else:
            self._streaks.pop(group, None)
        undeclared = {finding.kernel for finding in result.findings if finding.cause == Code.UNDECLARED_SHAPES}
        for kernel in undeclared.intersection(other_sizes):
            self._hold(kernel, f"{kernel} raises at such sizes ({result.id}); declare shapes=")

    def _hold(self, key: Hashable, why: str) -> None:
        self._why[key] = f"not run: {why}"
        self._news = True

    def take_from(self, waiting: deque[Job]) -> Iterator[CaseResult]:
        """Remove the jobs that need not run from `waiting`. Yields their results, with verdict `skip`."""
        if not self._news:
            return
        self._news = False
        jobs = list(waiting)
        waiting.clear()
        held = []
        for job in jobs:
            why = next((self._why[key] for key in self._keys.get(job.key, ()) if key in self._why), None)
            if why is None:
                waiting.append(job)
            else:
                held.append(CaseResult.of(job, Verdict.SKIP, reason=why, cause=Code.LEFT_OUT))
        yield from held


def _is_plain(job: Job) -> bool:
    is_trial = job.fault or job.sites is not None or not isinstance(job.ask, AskVerdict)
    return not is_trial and not job.case.known and bool(job.case.kernels())


def _kernels(job: Job) -> list[str]:
    return list(dict.fromkeys(job.case.kernels().values()))


def _of_other_sizes(job: Job) -> list[str]:
    """The kernels of a job that it calls at other sizes than an op's default parameters, which are DeepSeek's."""
    ops = {kernel: kernel.partition("/")[0] for kernel in _kernels(job)}
    return [kernel for kernel, op in ops.items() if op in SIZES and _sizes(op, job.case.params) != _default_sizes(op)]


def _sizes(op: str, params: Params) -> dict[str, int | str]:
    return {size: value for size, value in sizes_of(op, params).items() if size in RESIZABLE}


@cache
def _default_sizes(op: str) -> dict[str, int | str]:
    return _sizes(op, KERNEL_PARAMS[op]())
