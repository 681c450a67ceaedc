"""Diagnosis of failures within limits, for the command line: case, blame, first NaN, smallest
case.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from harness.core.cases import AskFirstNan, Job
from harness.core.catalog import FAULTS, SYSTEMS
from harness.core.cause_codes import Code, WhyNot
from harness.core.errors import InputError
from harness.core.records import Blame, CaseResult, FirstNan, Shrunk
from harness.diagnose.blame import Failure, find_blame
from harness.diagnose.budget import Budget
from harness.diagnose.shrink import shrink, why_not
from harness.run.planning import JobPlanner, Wanted, load
from harness.run.pool import JobPool
from harness.scenario.expand import fault_cases
from harness.scenario.selection import selects_scenario

NOT_SOUGHT = "not searched for: each trial would start a server; `mla-harness selftest` does so"
MAX_CASES = 32
"""Cases of a scenario that are run to find one that fails."""


@dataclass(slots=True)
class Limits:
    """The budget left to a session.

    One broken kernel fails everywhere for one reason, so a few cases are enough.
    """

    num_blamed: int = 20
    """Failing cases that get a blame."""
    blames: Budget = field(default_factory=lambda: Budget(90.0))
    """For all blames. A trial that kills its worker costs a new worker."""
    num_served: int = 3
    """Failing cases of a serving engine that run again with the recorder."""
    num_recorded: int = 8
    """Failing cases that run again with the first-NaN recorder."""
    recordings: Budget = field(default_factory=lambda: Budget(45.0))
    served_seconds: float = 120.0
    """Seconds that each served case adds to the time for recording."""
    shrink_seconds: float = 0.0
    """Seconds for all smaller cases."""


class Session:
    """Diagnoses failures on one pool. All calls share the limits."""

    def __init__(self, pool: JobPool, limits: Limits | None = None) -> None:
        self._pool = pool
        self._left = limits or Limits()
        self._shrunk: set[tuple[str, ...]] = set()

    def explain(self, failures: Iterable[Failure]) -> dict[str, Blame]:
        """Key of each failing job -> its blame, with the first writer and reader if they can be
        recorded.
        """
        left = self._left
        # A trial of a hanging case would hang as well.
        quick = [(job, result) for job, result in failures if not result.has_hung]
        # A trial of a serving engine lasts half a minute. Only `selftest` spends that time; here it
        # is recorded once.
        served = [(job, result) for job, result in quick if job.case.kind.serves][: left.num_served]
        quick = [(job, result) for job, result in quick if not job.case.kind.serves][
            : left.num_blamed
        ]
        left.num_served -= len(served)
        left.num_blamed -= len(quick)
        found = find_blame(self._pool, quick, left.blames)
        blames = {key: blame for key, (blame, _) in found.items()} | {
            job.key: Blame(cause=Code.NOT_SOUGHT, how=NOT_SOUGHT) for job, _ in served
        }
        return blames | self._with_first_nan(served + quick, blames)

    def _with_first_nan(
        self, failures: Sequence[Failure], blames: dict[str, Blame]
    ) -> dict[str, Blame]:
        left = self._left
        # Where the trials ran out of time, a recording would too.
        in_time = {key for key, blame in blames.items() if blame.cause != Code.OUT_OF_TIME}
        able = [job for job, _ in failures if job.key in in_time and not why_not_recorded(job)][
            : left.num_recorded
        ]
        left.recordings.seconds += sum(job.case.kind.serves for job in able) * left.served_seconds
        found = with_first_nan(self._pool, able, blames, left.recordings)
        left.num_recorded -= len(able)
        return found

    def smallest(self, failures: Iterable[Failure], blames: dict[str, Blame]) -> Iterator[Shrunk]:
        """Yield the smallest case for each reason of failures.

        Each reason gets an equal share of the time left.
        """
        started = time.monotonic()
        deadline = started + self._left.shrink_seconds
        reasons: dict[tuple[str, ...], tuple[Job, CaseResult, Blame | None]] = {}
        for job, result in failures:
            if result.findings and not why_not(job):
                blame = blames.get(result.key)
                reason = (
                    result.scenario,
                    result.findings[0].oracle,
                    *(blame.sites if blame else ()),
                )
                if reason not in self._shrunk:
                    # One smallest case a reason: a broken kernel fails everywhere for the same one.
                    reasons.setdefault(reason, (job, result, blame))
        self._shrunk |= reasons.keys()
        for place, (job, result, blame) in enumerate(reasons.values()):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            yield shrink(
                # What a reason does not use is left for those behind it.
                self._pool,
                job,
                result,
                blame=blame,
                seconds=left / (len(reasons) - place),
            )
        self._left.shrink_seconds -= time.monotonic() - started


def with_first_nan(
    pool: JobPool, failing: Iterable[Job], blames: dict[str, Blame], budget: Budget | None = None
) -> dict[str, Blame]:
    """Run each failing job again with the recorder.

    Returns the blames with the first writer and first reader.

    Each run is charged to `budget`. The rest is left out when it is spent.
    """
    budget = budget or Budget()
    jobs = {job.key: recorded_job(job, blames[job.key]) for job in failing}
    keys = {recorded.key: key for key, recorded in jobs.items()}
    found: dict[str, Blame] = {}
    for result in pool.run(list(jobs.values())):
        key = keys[result.key]
        if result.first_nan is not None:
            found[key] = _with_stage(blames[key].but(first_nan=result.first_nan), result.first_nan)
        budget.charge(result, pool.num_workers)
        if budget.is_spent:
            break
    return found


def _with_stage(blame: Blame, found: FirstNan) -> Blame:
    """The blame that names the memory of the first wrong stage, if it names none of its own."""
    if blame.sites or not found.stage_site:
        return blame
    how = f"{blame.how}; {found.stage}" if blame.how else found.stage
    return blame.but(sites=(found.stage_site,), how=how)


def why_not_recorded(job: Job) -> WhyNot | None:
    """Why a failing job cannot run with the recorder, in a sentence; None if it can."""
    if job.case.kind.records_first_nan:
        return None
    able = " and ".join(spec.name for spec in SYSTEMS if spec.records_first_nan)
    return WhyNot(f"the recorder watches {able}, not system {job.case.system}")


def recorded_job(job: Job, blame: Blame) -> Job:
    """The trial of a failing `job` with all its poison, which also finds the first reader of the
    memory to blame.
    """
    case = job.case.but(params=job.case.params.recorded())
    # The search for a reader runs the case several times.
    # The recording must not go on from the progress that the first run stored.
    return job.but(
        key=f"{job.key}~first-nan",
        case=case,
        ask=AskFirstNan(sites=blame.sites or job.poisoned_sites),
        timeout_seconds=4 * job.timeout_seconds,
        directory=None,
    )


def candidates(planner: JobPlanner) -> list[Job]:
    """The jobs to try for a failure, at most MAX_CASES.

    The points of a named scenario's faults come first.
    """
    wanted = planner.wanted
    declared = [
        case
        for scenario in planner.scenarios()
        if any(selects_scenario(selector, scenario) for selector in wanted.selectors)
        for use, case in fault_cases(scenario, seed=wanted.seed)
        if use.name == wanted.fault and not wanted.kernels and not wanted.plugins
    ]
    jobs = {job.key: job for job in planner.jobs_of(declared, fault=wanted.fault)}
    jobs |= {job.key: job for job in planner.jobs() if job.key not in jobs}
    return list(jobs.values())[:MAX_CASES]


def first_failure(
    pool: JobPool, jobs: list[Job], refusal: Callable[[Job], WhyNot | None] = why_not
) -> tuple[Job, CaseResult]:
    """The first of `jobs` that fails, with its result. Raises InputError when none does.

    `refusal` returns why a job is of no use, or None.
    """
    able = [job for job in jobs if not refusal(job)]
    if not able:
        raise InputError(f"{jobs[0].case.id}: {refusal(jobs[0])}")
    passed: list[CaseResult] = []
    while len(passed) < len(able):
        batch = able[len(passed) :][: pool.num_workers]
        for job, result in zip(batch, pool.run_in_order(batch), strict=True):
            if result.has_failed:
                return job, result
            passed.append(result)
    why = f": {passed[0].verdict.value}" + (f", {passed[0].reason}" if passed[0].reason else "")
    some = (
        f"{able[0].case.id}{why}"
        if len(able) == 1
        else f"none of {len(able)} cases fails; {able[0].case.id}{why}"
    )
    hint = "inject a bug with --fault, or name a kernel with --kernel"
    raise InputError(f"{some}; only a failing case can be reduced: {hint}")


def declared_oracle(wanted: Wanted, job: Job, result: CaseResult) -> str | None:
    """The oracle that catches the fault of a job, as its scenario declares; None if no declared one
    found something.

    `result` is what the job ended in. A declaration may allow several oracles.
    """
    found = {finding.oracle for finding in result.findings}
    uses = (
        use
        for scenario in load(wanted)
        if scenario.name == job.case.scenario
        for use in scenario.faults
    )
    declared = (oracle for use in uses if use.name == job.fault for oracle in use.caught_by)
    return next((oracle for oracle in declared if oracle in found), None)


def comes_from(reference: str, fault: str) -> bool:
    """Whether a fault is the bug of an upstream reference, which may be a number alone."""
    return FAULTS.get(fault).ref.rpartition("#")[2] == reference.rpartition("#")[2]
