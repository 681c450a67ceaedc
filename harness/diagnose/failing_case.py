"""The failing case of a selector, for reductions, scripts and judgements of a fix."""

from __future__ import annotations

from harness.core.cases import Job
from harness.core.catalog import FAULTS
from harness.core.errors import InputError
from harness.core.records import CaseResult
from harness.diagnose.shrink import why_not
from harness.run.planning import Planner, Wanted, load
from harness.run.pool import Pool
from harness.scenario.expand import fault_cases
from harness.scenario.selection import selects_scenario

MAX_CASES = 32
"""Cases of a scenario that are run to find one that fails."""


def candidates(planner: Planner) -> list[Job]:
    """The jobs to try for a failure, at most MAX_CASES. The points of a named scenario's faults come first."""
    wanted = planner.wanted
    declared = [
        case
        for scenario in planner.scenarios()
        if any(selects_scenario(selector, scenario) for selector in wanted.selectors)
        for use, case in fault_cases(scenario, seed=wanted.seed)
        if use.name == wanted.fault and wanted.kernel is None and not wanted.plugins
    ]
    jobs = {job.key: job for job in planner.jobs_of(declared, fault=wanted.fault)}
    jobs |= {job.key: job for job in planner.jobs() if job.key not in jobs}
    return list(jobs.values())[:MAX_CASES]


def first_failure(pool: Pool, jobs: list[Job]) -> tuple[Job, CaseResult]:
    """The first of `jobs` that fails, with its result. Raises InputError when none does."""
    able = [job for job in jobs if not why_not(job)]
    if not able:
        raise InputError(f"{jobs[0].case.id}: {why_not(jobs[0])}")
    results = pool.run_in_order(able)
    for job, result in zip(able, results, strict=True):
        if result.has_failed:
            return job, result
    why = f": {results[0].verdict.value}" + (f", {results[0].reason}" if results[0].reason else "")
    some = f"{able[0].case.id}{why}" if len(able) == 1 else f"none of {len(able)} cases fails; {able[0].case.id}{why}"
    hint = "inject a bug with --fault, or name a kernel with --kernel"
    raise InputError(f"{some}; only a failing case can be reduced: {hint}")


def declared_oracle(wanted: Wanted, job: Job) -> str | None:
    """The oracle that must catch the fault of a job, as its scenario declares, or None."""
    uses = (use for scenario in load(wanted) if scenario.name == job.case.scenario for use in scenario.faults)
    return next((use.caught_by for use in uses if use.name == job.fault), None)


def comes_from(reference: str, fault: str) -> bool:
    """Whether a fault is the bug of an upstream reference, which may be a number alone."""
    return FAULTS.get(fault).ref.rpartition("#")[2] == reference.rpartition("#")[2]
