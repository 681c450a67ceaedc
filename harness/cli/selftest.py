"""`mla-harness selftest`: run each scenario clean and with each of its faults, which must be
caught.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from harness.cli import run_and_report
from harness.cli.option_records import MakingRuns, with_options
from harness.cli.output import console, print_json
from harness.core.errors import InputError
from harness.core.records import Verdict
from harness.diagnose.run_jobs import exit_code
from harness.report.progress import Waiting
from harness.report.run_view import RunView
from harness.report.terminal import print_accuracy, print_failures, print_skips, totals_line
from harness.report.wording import fault_counts
from harness.run.planning import JobPlanner, Wanted
from harness.run.pool import JobPool
from harness.scenario.selection import select
from harness.store.run_folder import Control, RunStore
from harness.store.summary import summarise


@dataclass(frozen=True, kw_only=True)
class SelftestOptions(MakingRuns):
    """Options of `mla-harness selftest`."""

    no_clean: Annotated[bool, typer.Option("--faults-only", help="Skip the clean cases.")] = False
    controls: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Only N random cases on right kernels: a finding is a failure."
        ),
    ] = None


@with_options(SelftestOptions)
def selftest(context: typer.Context, given: SelftestOptions) -> None:
    """Inject each known bug, and check that it is caught."""
    store = run_and_report.to_resume(context, given.resume, given.out, "selftest")
    with run_and_report.pool_for(
        given.executor, given.ray_address, given.workers, given.per_gpu
    ) as pool:
        with Waiting(console(given.json), run_and_report.PLANNING):
            store = store or _planned(
                given.wanted(), pool, given.root, no_clean=given.no_clean, num_draws=given.controls
            )
        store.note_source(run_and_report.source_under_test(given.commit, given.branch))
        raise typer.Exit(finish(store, pool, as_json=given.json))


def _planned(
    wanted: Wanted, pool: JobPool, root: Path, *, no_clean: bool, num_draws: int | None
) -> RunStore:
    planner = JobPlanner(wanted, pool)
    known = planner.scenarios()
    if num_draws is not None:
        return run_and_report.planned(
            root, wanted, planner.control_jobs(num_draws), is_selftest=True
        )
    faults = planner.faults()
    found = [] if no_clean else select(known, wanted.selectors, tags=wanted.tags, seed=wanted.seed)
    if no_clean and not faults:
        raise InputError("--faults-only: the selected scenarios declare no fault; select others")
    controls = [Control(use=use, job=job) for use, job in faults]
    jobs = planner.jobs_of(planner.in_short(found))
    return run_and_report.planned(
        root, wanted, jobs, controls=controls, is_selftest=True, num_long=planner.num_long
    )


def finish(store: RunStore, pool: JobPool, *, as_json: bool) -> int:
    """Run what is left of a planned selftest, and print it. Returns the exit code."""
    screen = console(as_json)

    def report(view: RunView) -> int:
        code = _code(store)
        _print(screen, view)
        if as_json:
            print_json(_object(store, is_good=code == 0))
        return code

    work = partial(run_and_report.work_on, store, pool, screen)
    return run_and_report.work_and_report(store, work, stop=pool.close, report=report)


def _late(store: RunStore) -> set[str]:
    """The keys of cases on right kernels that the time limit ended.

    A slow machine is no false alarm.
    """
    on_sound = {job.key for job in store.plan.jobs if job.case.uses_sound_variant}
    return on_sound & {result.key for result in store.results() if result.has_hung}


def _code(store: RunStore) -> int:
    """As for `run`: 0 all good, 1 a regression or a fault not caught, 2 nothing ran, 3 the harness
    could not judge.
    """
    late = _late(store)
    tried = store.tried()
    results = [result for result in store.results() if result.key not in late]
    verdicts = [result.verdict for result in [*results, *tried.values()]]
    if run_and_report.is_all_skipped(verdicts) and not store.untried_controls():
        return 2
    return exit_code(results, store.faults(), tried.values()) or (
        3 if late or store.unfinished_controls() else 0
    )


def _print(screen: Console, view: RunView) -> None:
    store = view.store
    num_skipped = len(store.skipped_faults())
    print_accuracy(screen, view.accuracy)
    print_failures(screen, view)
    print_skips(screen, view.skips)
    print_skips(screen, view.refusals, word="refused")
    counts = {"skipped": num_skipped, "not judged yet": len(store.unfinished_controls())}
    more = "".join(f", {count} {word}" for word, count in counts.items() if count)
    num_judged = len(store.plan.controls) - num_skipped
    if num_on_sound := sum(job.case.uses_sound_variant for job in store.plan.jobs):
        late = len(_late(store))
        false_alarms = sum(result.verdict is not Verdict.PASS for result in view.results) - late
        more = f", {late} not judged within the time limit" if late else ""
        screen.print(
            f"false alarms: {false_alarms} in {num_on_sound - late} cases on right kernels{more}"
        )
    else:
        screen.print(f"faults {fault_counts(view.faults, num_judged)}{more}")
    if view.results:
        screen.print("clean cases:", totals_line(view))
    screen.print(f"report: {store.path / 'report.html'}", soft_wrap=True)


def _object(store: RunStore, *, is_good: bool) -> dict[str, Any]:
    # What the calls covered is in summary.json, and no part of this object.
    summary = summarise(store, ())
    return {
        "ok": is_good,
        "run_id": store.plan.run_id,
        "directory": str(store.path),
        "seconds": store.plan.seconds,
        "totals": summary["totals"],
        "not_clean": [
            case for case in summary["cases"] if case["verdict"] not in ("pass", "skip", "known")
        ],
        "faults": [fault.model_dump(mode="json") for fault in store.faults()],
        "skipped_faults": store.skipped_faults(),
    }
