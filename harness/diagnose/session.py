"""Diagnosis of failing jobs, for the command line and for pytest: blame, first NaN, smallest case, within limits."""

from __future__ import annotations

import math
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

from harness.core.cases import Job
from harness.core.records import Blame, CaseResult, Shrunk, Verdict
from harness.diagnose import first_nan
from harness.diagnose.blame import conclude, plan_trials
from harness.diagnose.shrink import shrink, why_not
from harness.run.pool import Pool

FAILED = (Verdict.FAIL, Verdict.CRASH)
NOT_SOUGHT = "not sought: each trial would be a serving process; `mla-harness selftest` takes that time"

Failure = tuple[Job, CaseResult]


@dataclass(slots=True)
class Limits:
    """What a session may still spend. One broken kernel fails everywhere for one reason, so a few cases tell enough."""

    num_blamed: int = 20
    """Failing cases for which the memory to blame is sought."""
    blame_seconds: float = 90.0
    """How long that may take; each trial of a case that kills its worker costs a new worker."""
    num_served: int = 3
    """Failing cases of a serving engine that are served once more, with the recorder."""
    num_recorded: int = 8
    """Failing cases that are run with the first-NaN recorder."""
    recording_seconds: float = 45.0
    served_seconds: float = 120.0
    """What each served case adds to the time for recording."""
    shrink_seconds: float = 0.0
    """How long smaller cases may be sought, in all."""
    most_shrink_seconds: float = math.inf
    """How long for one failure, at most."""


class Session:
    """Diagnoses failures on one pool. Calls share the limits, as pytest hands over one failure at a time."""

    def __init__(self, pool: Pool, limits: Limits | None = None) -> None:
        self._pool = pool
        self._left = limits or Limits()
        self._shrunk: set[tuple[str, ...]] = set()

    def explain(self, failures: Iterable[Failure]) -> dict[str, Blame]:
        """The blame of failing jobs by their keys, with the first writer and reader where they can be recorded."""
        left = self._left
        # A hang is not waited for twenty times more.
        quick = [(job, result) for job, result in failures if result.seconds < job.timeout_seconds]
        # A trial of a serving engine takes half a minute: `selftest` takes that time, and here is one, recorded.
        served = [(job, result) for job, result in quick if job.case.kind.serves][: left.num_served]
        quick = [(job, result) for job, result in quick if not job.case.kind.serves][: left.num_blamed]
        left.num_served -= len(served)
        left.num_blamed -= len(quick)
        started = time.monotonic()
        found = find_blame(self._pool, quick, budget_seconds=left.blame_seconds)
        left.blame_seconds -= time.monotonic() - started
        blames = {key: blame for key, (blame, _) in found.items()} | {
            job.key: Blame(how=NOT_SOUGHT) for job, _ in served
        }
        return blames | self._with_first_nan(served + quick, blames)

    def _with_first_nan(self, failures: Sequence[Failure], blames: dict[str, Blame]) -> dict[str, Blame]:
        left, started = self._left, time.monotonic()
        able = [job for job, _ in failures if job.key in blames and not first_nan.why_not(job)][: left.num_recorded]
        seconds = left.recording_seconds + sum(job.case.kind.serves for job in able) * left.served_seconds
        found = with_first_nan(self._pool, able, blames, seconds)
        left.num_recorded -= len(able)
        left.recording_seconds -= time.monotonic() - started
        return found

    def smallest(self, failures: Iterable[Failure], blames: dict[str, Blame]) -> Iterator[Shrunk]:
        """The smallest case of each reason for which jobs fail, in an equal share of the time that is left."""
        started = time.monotonic()
        deadline = started + self._left.shrink_seconds
        reasons: dict[tuple[str, ...], tuple[Job, CaseResult, Blame | None]] = {}
        for job, result in failures:
            if result.findings and not why_not(job):
                blame = blames.get(result.key)
                reason = (result.scenario, result.findings[0].oracle, *(blame.sites if blame else ()))
                if reason not in self._shrunk:
                    reasons.setdefault(reason, (job, result, blame))
        self._shrunk |= reasons.keys()
        for place, (job, result, blame) in enumerate(reasons.values()):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            # The time that one case leaves over is for the cases after it.
            seconds = min(left / (len(reasons) - place), self._left.most_shrink_seconds)
            yield shrink(self._pool, job, result, blame=blame, seconds=seconds)
        self._left.shrink_seconds -= time.monotonic() - started


def find_blame(
    pool: Pool, failures: Sequence[Failure], *, budget_seconds: float = math.inf
) -> dict[str, tuple[Blame, float]]:
    """The memory to blame for each failing job, by its key, and the seconds that its trials took.

    All failures go through their rounds of trials together, so that the workers are never idle. Jobs with trials that
    are not done within `budget_seconds` are left out.
    """
    deadline = time.monotonic() + budget_seconds
    trials: dict[str, list[CaseResult]] = {job.key: [] for job, _ in failures}
    undecided = {job.key: (job, result) for job, result in failures}
    while undecided:
        rounds = {key: plan_trials(job, result, trials[key]) for key, (job, result) in undecided.items()}
        for key in [key for key, jobs in rounds.items() if not jobs]:
            del undecided[key]
        found: dict[str, CaseResult] = {}
        for result in pool.run([trial for jobs in rounds.values() for trial in jobs]):
            found[result.key] = result
            if time.monotonic() > deadline:
                break
        for key in undecided:
            if any(trial.key not in found for trial in rounds[key]):
                return _concluded(failures, trials, undecided)
            trials[key] += [found[trial.key] for trial in rounds[key]]
    return _concluded(failures, trials, {})


def _concluded(
    failures: Sequence[Failure], trials: dict[str, list[CaseResult]], undecided: Container[str]
) -> dict[str, tuple[Blame, float]]:
    return {
        job.key: (conclude(job, result, trials[job.key]), sum(trial.seconds for trial in trials[job.key]))
        for job, result in failures
        if job.key not in undecided
    }


def with_first_nan(
    pool: Pool, failing: Iterable[Job], blames: dict[str, Blame], budget_seconds: float = math.inf
) -> dict[str, Blame]:
    """The blames of failing jobs with the first writer and the first reader: each case once more, recorded."""
    jobs = {job.key: first_nan.recorded_job(job, blames[job.key]) for job in failing}
    keys = {recorded.key: key for key, recorded in jobs.items()}
    found: dict[str, Blame] = {}
    deadline = time.monotonic() + budget_seconds
    for result in pool.run(list(jobs.values())):
        key = keys[result.key]
        if result.first_nan is not None:
            found[key] = blames[key].model_copy(update={"first_nan": result.first_nan})
        if time.monotonic() > deadline:
            break
    return found
