"""`mla-harness selftest`: run each scenario clean and with each of its faults, which must be caught."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from harness.cli import making_runs, options
from harness.cli.mutants import planned_trials, try_mutants
from harness.cli.output import console, print_json
from harness.core.errors import InputError
from harness.core.records import CaseResult, Verdict
from harness.diagnose.perform import exit_code
from harness.report.terminal import fault_line, print_accuracy, print_failures, print_known, print_skips, totals_line
from harness.run.planning import Planner, Wanted
from harness.run.pool import Pool
from harness.scenario.selection import select
from harness.store.run_folder import DEFAULT_RUNS, Control, RunStore
from harness.store.summary import accuracy_records, summarise


def selftest(
    context: typer.Context,
    selectors: options.Selectors = None,
    tags: options.Tags = None,
    device: options.Device = "auto",
    seed: options.Seed = 0,
    out: options.Out = None,
    resume: options.Resume = None,
    timeout: options.Timeout = 60.0,
    workers: options.Workers = None,
    per_gpu: options.PerGpu = 1,
    executor: options.Executor = making_runs.LOCAL,
    ray_address: options.RayAddress = None,
    scenarios: options.Scenarios = None,
    exhaustive: options.Exhaustive = False,
    history: options.History = None,
    commit: options.Commit = "",
    branch: options.Branch = "",
    json: options.Json = False,
    mutants: Annotated[
        int | None,
        typer.Option("--mutants", metavar="N", min=1, help="Change the engine's code in N small ways instead."),
    ] = None,
    no_clean: Annotated[bool, typer.Option("--faults-only", help="Skip the clean cases.")] = False,
    controls: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Only N random cases on right kernels: a finding is a failure."),
    ] = None,
) -> None:
    """Inject each known bug, and check that it is caught."""
    wanted = Wanted(
        tuple(selectors or ()), tuple(tags or ()), device, seed=seed, timeout_seconds=timeout, scenarios=scenarios
    )
    if mutants is not None and (controls is not None or no_clean):
        raise InputError("--mutants: judges changes of the engine's code alone; leave out --controls and --faults-only")
    store = making_runs.to_resume(context, resume, out, "selftest")
    with making_runs.pool_for(executor, ray_address, workers, per_gpu) as pool:
        root = out or DEFAULT_RUNS
        if store is None and mutants is not None:
            store = planned_trials(wanted, pool, mutants, out=root, workers=workers)
        store = store or _planned(wanted, pool, root, no_clean=no_clean, num_draws=controls)
        store.note_source(making_runs.source_under_test(commit, branch))
        kept = making_runs.history_file(history)
        if trials := store.plan.trials:
            raise typer.Exit(try_mutants(store, trials, workers=workers, as_json=json, history=kept))
        raise typer.Exit(finish(store, pool, as_json=json, is_exhaustive=exhaustive, history=kept))


def _planned(wanted: Wanted, pool: Pool, root: Path, *, no_clean: bool, num_draws: int | None) -> RunStore:
    planner = Planner(wanted, pool)
    known = planner.scenarios()
    if num_draws is not None:
        return making_runs.planned(root, wanted, planner.control_jobs(num_draws), is_selftest=True)
    faults = planner.faults()
    cases = [] if no_clean else select(known, wanted.selectors, tags=wanted.tags, seed=wanted.seed)
    if no_clean and not faults:
        raise InputError("--faults-only: the selected scenarios declare no fault; select others")
    controls = [Control(use=use, job=job) for use, job in faults]
    return making_runs.planned(root, wanted, planner.jobs_of(cases), controls=controls, is_selftest=True)


def finish(
    store: RunStore, pool: Pool, *, as_json: bool, is_exhaustive: bool = False, history: Path | None = None
) -> int:
    """Run what is left of a planned selftest, and print it. Returns the exit code."""
    screen = console(as_json)

    def tell() -> int:
        code = _code(store)
        _print(screen, store)
        if as_json:
            print_json(_object(store, is_good=code == 0))
        return code

    def work() -> None:
        making_runs.work_on(store, pool, screen, is_exhaustive=is_exhaustive)

    return making_runs.perform(store, work, stop=pool.close, tell=tell, history=history)


def _skipped(store: RunStore) -> list[CaseResult]:
    """The results of faults that could not run here."""
    tried = store.tried()
    found = (tried.get(control.job.key) for control in store.plan.controls)
    return [result for result in found if result is not None and result.verdict is Verdict.SKIP]


def _code(store: RunStore) -> int:
    """As for `run`: 0 all good, 1 a regression or a missed fault, 2 nothing ran, 3 the harness could not judge."""
    results, tried = store.results(), store.tried()
    verdicts = [result.verdict for result in [*results, *tried.values()]]
    if making_runs.is_all_skipped(verdicts) and not store.untried_controls():
        return 2
    return exit_code(results, store.faults(), tried.values()) or (3 if store.unfinished_controls() else 0)


def _print(screen: Console, store: RunStore) -> None:
    results, faults, skipped = store.results(), store.faults(), _skipped(store)
    print_accuracy(screen, accuracy_records([*results, *faults]))
    print_failures(screen, store, results)
    for fault in faults:
        screen.print(fault_line(fault), soft_wrap=True)
    print_known(screen, results)
    print_skips(screen, [*results, *skipped])
    counts = {"skipped": len(skipped), "not judged yet": len(store.unfinished_controls())}
    more = "".join(f", {count} {word}" for word, count in counts.items() if count)
    num_judged = len(store.plan.controls) - len(skipped)
    if num_on_sound := sum(job.case.uses_sound_variant for job in store.plan.jobs):
        false_alarms = sum(result.verdict is not Verdict.PASS for result in results)
        screen.print(f"false alarms: {false_alarms} in {num_on_sound} cases on right kernels")
    else:
        screen.print(f"faults caught: {sum(fault.caught for fault in faults)} of {num_judged}{more}")
    if results:
        screen.print("clean cases:", totals_line(results, store.plan.seconds))
    screen.print(f"report: {store.path / 'report.html'}", soft_wrap=True)


def _object(store: RunStore, *, is_good: bool) -> dict[str, Any]:
    summary = summarise(store)
    return {
        "ok": is_good,
        "run_id": store.plan.run_id,
        "directory": str(store.path),
        "seconds": store.plan.seconds,
        "totals": summary["totals"],
        "not_clean": [case for case in summary["cases"] if case["verdict"] not in ("pass", "skip", "known")],
        "faults": [fault.model_dump(mode="json") for fault in store.faults()],
        "skipped_faults": [{"fault": r.fault, "case": r.id, "reason": r.reason} for r in _skipped(store)],
    }
