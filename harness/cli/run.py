"""`mla-harness run`: plan, run, blame, report."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from harness.cli import making_runs, options
from harness.cli.fail_on import FailOn, code_of
from harness.cli.output import console, print_json
from harness.cli.sharding import cut, refuse_moving
from harness.core.errors import InputError
from harness.core.extras import require
from harness.core.records import Verdict
from harness.report.console import say
from harness.report.terminal import LiveProgress, print_run, totals_line
from harness.run.in_process import InProcessPool
from harness.run.planning import Planner, Wanted
from harness.run.pool import Pool
from harness.run.sanitizer import SanitizedPool, check
from harness.store.run_folder import DEFAULT_RUNS, Control, RunStore
from harness.store.summary import summarise


def run(
    context: typer.Context,
    selectors: options.Selectors = None,
    tags: options.Tags = None,
    device: options.Device = "auto",
    kernels: options.Kernels = None,
    plugin: options.Plugins = None,
    fault: options.Fault = None,
    with_faults: Annotated[
        bool, typer.Option("--with-faults", help="Also inject the known bugs that the scenarios declare.")
    ] = False,
    seed: options.Seed = 0,
    out: options.Out = None,
    resume: options.Resume = None,
    timeout: options.Timeout = 60.0,
    workers: options.WorkersOrHere = None,
    per_gpu: options.PerGpu = 1,
    executor: options.Executor = making_runs.LOCAL,
    ray_address: options.RayAddress = None,
    scenarios: options.Scenarios = None,
    engine_path: options.EnginePath = None,
    sanitizer: Annotated[
        str | None, typer.Option(metavar="TOOL", help="Run one case under initcheck, memcheck or racecheck.")
    ] = None,
    shard: Annotated[str | None, typer.Option(metavar="I/N", help="Run part I of N parts, cut by case ids.")] = None,
    times: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Cut shards by the times in this copy of a history.")
    ] = None,
    shrink_seconds: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.0, help="Time for shrinking failing cases.")
    ] = 0.0,
    exhaustive: options.Exhaustive = False,
    first_failure: Annotated[bool, typer.Option("-x", help="Stop after the first failure.")] = False,
    max_failures: Annotated[int | None, typer.Option(metavar="N", min=1, help="Stop after N failures.")] = None,
    last_failed: Annotated[
        bool, typer.Option("--last-failed", help="Only cases that failed in the newest run, with its options.")
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", help="Print failures in one line each, and totals.")] = False,
    verbose: Annotated[bool, typer.Option("-v", help="Print each case, and tracebacks in full.")] = False,
    fail_on: FailOn = None,
    history: options.History = None,
    commit: options.Commit = "",
    branch: options.Branch = "",
    json: options.Json = False,
) -> None:
    """Run cases, find the memory to blame for failures, and write reports."""
    wanted = Wanted(
        *(tuple(selectors or ()), tuple(tags or ()), device, tuple(kernels or ()), tuple(plugin or ())),
        *(fault, seed, timeout, scenarios, engine_path),
    )
    again: frozenset[str] | None = None
    if last_failed:
        wanted, again = making_runs.as_last_failed(wanted, out or DEFAULT_RUNS)
    kept = making_runs.history_file(history)
    if "new" in (fail_on or ()) and kept is None:
        raise InputError("--fail-on new: compares with the run before in the history; leave out --history none")
    if "new" in (fail_on or ()):
        require(["pandas"])
    if times is not None:
        refuse_moving(times, shard, kept)
    if store := making_runs.to_resume(context, resume, out, "run"):
        sanitizer = store.plan.sanitizer
        if sanitizer and (left := store.unfinished()):
            check(sanitizer, left)
    with _pool(workers, per_gpu, sanitizer, executor, ray_address) as pool:
        if store is None:
            store = _planned(wanted, pool, out or DEFAULT_RUNS, shard, times, again, with_faults=with_faults)
        store.note_source(making_runs.source_under_test(commit, branch, wanted.plugins))
        code = finish(
            store,
            pool,
            as_json=json,
            is_exhaustive=exhaustive,
            shrink_seconds=shrink_seconds,
            max_failures=1 if first_failure else max_failures,
            loudness=verbose - quiet,
            fail_on=fail_on,
            history=kept,
        )
    raise typer.Exit(code)


def _pool(workers: int | None, per_gpu: int, sanitizer: str | None, executor: str, ray_address: str | None) -> Pool:
    if workers == 0:
        if sanitizer or executor != making_runs.LOCAL:
            raise InputError("-n 0: runs cases in this process; leave out --sanitizer and --executor")
        return InProcessPool()
    if sanitizer is None:
        return making_runs.pool_for(executor, ray_address, workers, per_gpu)
    if executor != making_runs.LOCAL:
        raise InputError("--sanitizer: watches a case on this machine; leave out --executor")
    return SanitizedPool(sanitizer)


def _planned(
    wanted: Wanted,
    pool: Pool,
    root: Path,
    shard: str | None,
    times: Path | None,
    again: Collection[str] | None,
    *,
    with_faults: bool,
) -> RunStore:
    """Plan a run; of the cases, only those with an id in `again` if it is not None."""
    planner = Planner(wanted, pool)
    jobs = [job for job in planner.jobs() if again is None or job.case.id in again]
    if not jobs:
        raise InputError("--last-failed: none of the selected cases failed in the newest run; select others")
    tool = pool.tool if isinstance(pool, SanitizedPool) else None
    if tool is not None:
        check(tool, jobs)
    controls = [Control(use=use, job=job) for use, job in (planner.faults_in(jobs) if with_faults else ())]
    note = None
    if shard is not None:
        jobs, controls, note = cut(shard, jobs, controls, times)
    return making_runs.planned(root, wanted, jobs, controls=controls, sanitizer=tool, shard=note)


def finish(
    store: RunStore,
    pool: Pool,
    *,
    as_json: bool,
    is_exhaustive: bool = False,
    shrink_seconds: float = 0.0,
    max_failures: int | None = None,
    loudness: int = 0,
    fail_on: Collection[str] | None = None,
    history: Path | None = None,
) -> int:
    """Run what is left of a planned run, and print it: less with `loudness` -1, more with 1. Returns the exit code."""
    # A moving line would disturb a debugger.
    screen = console(as_json, moves=not isinstance(pool, InProcessPool))

    def work() -> None:
        making_runs.work_on(
            store,
            pool,
            screen,
            is_exhaustive=is_exhaustive,
            shrink_seconds=shrink_seconds,
            max_failures=max_failures,
            progress=making_runs.EachCase if loudness > 0 else LiveProgress,
        )

    def tell() -> int:
        if loudness < 0:
            screen.print(totals_line(store.results(), store.plan.seconds))
        else:
            print_run(screen, store, with_table=loudness > 0)
        if (fault := store.plan.options.get("fault")) and {one.verdict for one in store.results()} == {Verdict.PASS}:
            say(screen, f"{fault}: no case fails with it; leave out the selector to run the scenarios that declare it")
        if as_json:
            print_json(summarise(store))
        return code_of(store, fail_on or (), history, screen)

    return making_runs.perform(store, work, stop=pool.close, tell=tell, history=history)
