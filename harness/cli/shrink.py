"""`mla-harness shrink CASE`: the smallest case that still fails for the same reason, and the way there."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.run import Device, Json, Scenarios, Seed, Timeout, Workers

if TYPE_CHECKING:
    from harness.cli.session import Wanted
    from harness.core.cases import Job
    from harness.core.records import Blame, CaseResult, Shrunk
    from harness.run.pool import Pool
    from harness.run.runner import WorkerPool
    from harness.store.run_folder import RunStore

MAX_CASES = 32
"""Cases of a scenario that are run to find one that fails."""

Seconds = Annotated[float, typer.Option("--seconds", min=0.0, help="How long to look for smaller cases.")]


def shrink(
    selector: Annotated[str, typer.Argument(metavar="CASE", help="A case id, or a scenario: its first failing case.")],
    fault: Annotated[str | None, typer.Option("--fault", metavar="NAME", help="Put this known bug back.")] = None,
    kernel: Annotated[str | None, typer.Option("--kernel", help="Judge this kernel wherever its op is used.")] = None,
    plugin: Annotated[list[Path] | None, typer.Option("--plugin", help="A Python file with kernels of yours.")] = None,
    seconds: Seconds = 60.0,
    device: Device = "auto",
    seed: Seed = 0,
    timeout: Timeout = 60.0,
    workers: Workers = None,
    scenarios: Scenarios = None,
    json: Json = False,
) -> None:
    """Reduce a failing case to the smallest that fails for the same reason."""
    from harness.cli.session import Wanted
    from harness.diagnose.shrink import shrink as search
    from harness.report.terminal import console_for
    from harness.report.terminal_shrunk import print_shrunk
    from harness.run.runner import WorkerPool

    wanted = Wanted(
        selectors=(selector,), device=device, kernel=kernel, plugins=tuple(path.resolve() for path in plugin or ()),
        fault=fault, seed=seed, timeout_seconds=timeout, scenarios=scenarios,
    )  # fmt: skip
    console = console_for(sys.stderr if json else sys.stdout)
    with WorkerPool(workers) as pool:
        with console.status("looking for a failing case"):
            job, result = first_failure(pool, failing_candidates(wanted, pool))
        console.print(f"shrinking {job.case.id}" + (f" with {fault}" if fault else ""), markup=False, soft_wrap=True)
        with console.status("trying smaller cases") as status:
            shrunk = search(
                pool, job, result, oracle=declared_oracle(wanted, job), seconds=seconds,
                on_step=lambda step: status.update(f"trying smaller cases: {step.what} is {step.after}"[:100]),
            )  # fmt: skip
    print_shrunk(console, shrunk, command_of(shrunk, wanted))
    if json:
        sys.stdout.write(shrunk.model_dump_json(indent=1) + "\n")


def failing_candidates(wanted: Wanted, pool: WorkerPool) -> list[Job]:
    """The jobs among which the first that fails is meant: where a scenario is named, the points of its faults first."""
    from harness.cli.session import load, make_jobs, plan_jobs
    from harness.scenario.expand import fault_cases
    from harness.scenario.selection import selects_scenario

    declared = [
        case
        for scenario in load(wanted)
        if any(selects_scenario(selector, scenario) for selector in wanted.selectors)
        for use, case in fault_cases(scenario, seed=wanted.seed)
        if use.name == wanted.fault and wanted.kernel is None and not wanted.plugins
    ]
    jobs = {job.key: job for job in make_jobs(declared, wanted, pool, fault=wanted.fault)}
    jobs |= {job.key: job for job in plan_jobs(wanted, pool) if job.key not in jobs}
    return list(jobs.values())[:MAX_CASES]


def first_failure(pool: WorkerPool, jobs: list[Job]) -> tuple[Job, CaseResult]:
    """The first of `jobs` that fails, with its result. Raises InputError when none does."""
    from harness.cli.session import FAILED
    from harness.core.errors import InputError
    from harness.diagnose.shrink import why_not

    able = [job for job in jobs if not why_not(job)]
    if not able:
        raise InputError(f"{jobs[0].case.id}: {why_not(jobs[0])}")
    results = pool.run_in_order(able)
    for job, result in zip(able, results, strict=True):
        if result.verdict in FAILED and result.findings:
            return job, result
    told = f": {results[0].verdict.value}" + (f", {results[0].reason}" if results[0].reason else "")
    some = f"{able[0].case.id}{told}" if len(able) == 1 else f"none of {len(able)} cases fails; {able[0].case.id}{told}"
    hint = "put a bug back with --fault, or name a kernel with --kernel"
    raise InputError(f"{some}; only a failing case can be reduced: {hint}")


def declared_oracle(wanted: Wanted, job: Job) -> str | None:
    """The oracle by which the scenario of a job says that its fault is caught, or None."""
    from harness.cli.session import load

    uses = (use for scenario in load(wanted) if scenario.name == job.case.scenario for use in scenario.faults)
    return next((use.caught_by for use in uses if use.name == job.fault), None)


def command_of(shrunk: Shrunk, wanted: Wanted) -> str:
    """The command that runs the smallest case."""
    from harness.report.command import reproduce_case

    return reproduce_case(shrunk.case.id, shrunk.fault, wanted.reproduction())


def shrink_failures(store: RunStore, pool: Pool, seconds: float) -> None:
    """Store the smallest case of each reason for which cases of a run fail, within `seconds` in all."""
    from harness.diagnose.shrink import shrink as search
    from harness.diagnose.shrink import why_not

    deadline = time.monotonic() + seconds
    blames, known, jobs = store.blames(), store.shrunk(), store.jobs_by_key()
    reasons: dict[tuple[str, ...], tuple[Job, CaseResult, Blame | None]] = {}
    for result in store.results():
        if result.findings and result.key not in known and not why_not(jobs[result.key]):
            blame = blames.get(result.key)
            reason = (result.scenario, result.findings[0].oracle, *(blame.sites if blame else ()))
            reasons.setdefault(reason, (jobs[result.key], result, blame))
    for place, (job, result, blame) in enumerate(reasons.values()):
        left = deadline - time.monotonic()
        if left <= 0:
            return
        # An equal share each; what one leaves over is for those after it.
        share = left / (len(reasons) - place)
        store.add_shrunk(search(pool, job, result, blame=blame, seconds=share))
