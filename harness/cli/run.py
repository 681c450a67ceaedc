"""`mla-harness run`: plan, run, blame, report."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer
from rich.console import Console

from harness.cli import run_and_report, shared_options
from harness.cli.option_records import MakingRuns, with_options
from harness.cli.output import console, print_json
from harness.core import unreadable
from harness.core.cases import Job
from harness.core.errors import InputError
from harness.core.fault_outcomes import MISSED, WRONG_BLAME
from harness.core.records import FAILED, Verdict
from harness.report.console import say
from harness.report.progress import Waiting
from harness.report.run_view import RunView
from harness.report.terminal import print_run, totals_line
from harness.report.wording import num
from harness.run.in_process import InProcessPool
from harness.run.planning import JobPlanner, Wanted
from harness.run.pool import JobPool
from harness.run.sanitizer import SanitizedPool, check
from harness.scenario.shard import Shard, split
from harness.store.history.compare import last_green
from harness.store.history.entry import PastRuns, RunEntry, entry_of, read_entry
from harness.store.run_folder import Control, RunStore, ShardNote, find_run
from harness.store.summary import summarise

_Word = StrEnum("_Word", ["skip", "new", "error"])
FailOn = Annotated[
    list[_Word] | None,
    typer.Option(
        "--fail-on",
        help="Exit code 1 for skips, for new failures only, or for errors; may be repeated.",
    ),
]
Against = Annotated[
    str | None,
    typer.Option(
        metavar="RUN",
        help="With --fail-on new: the run with failures that you accept [default: none].",
    ),
]


@dataclass(frozen=True, kw_only=True)
class RunOptions(MakingRuns):
    """Options of `mla-harness run`."""

    workers: shared_options.WorkersOrHere = None
    kernels: shared_options.Kernels = None
    plugin: shared_options.Plugins = None
    fault: shared_options.Fault = None
    with_faults: Annotated[
        bool,
        typer.Option(
            "--with-faults", help="Also inject the known bugs that the scenarios declare."
        ),
    ] = False
    engine_path: shared_options.EnginePath = None
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a value of the cases, as `CASE@KEY=VALUE` does.",
        ),
    ] = None
    sample: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Run N of the cases, drawn by --seed.")
    ] = None
    sanitizer: Annotated[
        str | None,
        typer.Option(
            metavar="TOOL", help="Run cases under initcheck, memcheck, racecheck or synccheck."
        ),
    ] = None
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="Run part I of N parts, cut by case ids.")
    ] = None
    shrink_seconds: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.0, help="Time for shrinking failing cases.")
    ] = 0.0
    first_failure: Annotated[bool, typer.Option("-x", help="Stop after the first failure.")] = False
    max_failures: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Stop after N failures.")
    ] = None
    keep_going: Annotated[
        bool,
        typer.Option(
            "--keep-going", help="Run all cases of your kernel, also after three crashes alike."
        ),
    ] = False
    last_failed: Annotated[
        bool,
        typer.Option(
            "--last-failed", help="Only cases that failed in the newest run, with its options."
        ),
    ] = False
    quiet: Annotated[
        bool, typer.Option("-q", help="Print failures in one line each, and totals.")
    ] = False
    verbose: Annotated[
        bool, typer.Option("-v", help="Print each case, and tracebacks in full.")
    ] = False
    history: shared_options.History = None
    fail_on: FailOn = None
    against: Against = None


@with_options(RunOptions)
def run(context: typer.Context, given: RunOptions) -> None:
    """Run cases, find the memory to blame for failures, and write reports."""
    wanted = given.wanted(
        kernels=tuple(given.kernels or ()),
        plugins=tuple(given.plugin or ()),
        changes=",".join(given.changes or ()),
        sample=given.sample,
        fault=given.fault,
        engine_path=given.engine_path,
    )
    again: frozenset[str] | None = None
    if given.last_failed:
        wanted, again = run_and_report.as_last_failed(wanted, given.root)
    accepted = _accepted(given)
    sanitizer = given.sanitizer
    if store := run_and_report.to_resume(context, given.resume, given.out, "run"):
        sanitizer = store.plan.sanitizer
        if sanitizer and (left := store.unfinished()):
            check(sanitizer, left)
    with _pool(given, sanitizer) as pool:
        if store is None:
            with Waiting(_screen(given, pool), run_and_report.PLANNING):
                store = _planned(wanted, pool, given, again)
        store.note_source(
            run_and_report.source_under_test(given.commit, given.branch, wanted.plugins)
        )
        code = finish(store, pool, given, accepted)
    raise typer.Exit(code)


def _screen(given: RunOptions, pool: JobPool) -> Console:
    # A moving line would disturb a debugger.
    return console(given.json, moves=not isinstance(pool, InProcessPool))


def _accepted(given: RunOptions) -> RunEntry | None:
    """The run with failures that the user accepts.

    Raises InputError for options that do not go together.
    """
    runs = run_and_report.past_runs(given.history, given.root)
    only_new = "new" in (given.fail_on or ())
    if only_new and runs is None:
        raise InputError(
            "--fail-on new: compares with the last green run; leave out --history none"
        )
    if given.against is None:
        return None
    if not only_new or runs is None:
        raise InputError(
            f"--against {given.against}: is for --fail-on new; add it, or leave --against out"
        )
    return read_entry(find_run(given.against, runs.root))


def _pool(given: RunOptions, sanitizer: str | None) -> JobPool:
    if given.workers == 0:
        if sanitizer or given.executor != shared_options.LOCAL:
            raise InputError(
                "-n 0: runs cases in this process; leave out --sanitizer and --executor"
            )
        return InProcessPool()
    if sanitizer is None:
        return run_and_report.pool_for(
            given.executor, given.ray_address, given.workers, given.per_gpu
        )
    if given.executor != shared_options.LOCAL:
        raise InputError("--sanitizer: watches a case on this machine; leave out --executor")
    return SanitizedPool(sanitizer, given.workers or 1)


def _planned(
    wanted: Wanted, pool: JobPool, given: RunOptions, again: Collection[str] | None
) -> RunStore:
    """Plan a run; of the cases, only those with an id in `again` if it is not None."""
    planner = JobPlanner(wanted, pool)
    jobs = [job for job in planner.jobs() if again is None or job.case.id in again]
    if not jobs:
        raise InputError(
            "--last-failed: none of the selected cases failed in the newest run; select others"
        )
    tool = pool.tool if isinstance(pool, SanitizedPool) else None
    if tool is not None:
        check(tool, jobs)
    controls = [
        Control(use=use, job=job)
        for use, job in (planner.faults_in(jobs) if given.with_faults else ())
    ]
    note = None
    if given.shard is not None:
        jobs, controls, note = cut(given.shard, jobs, controls)
    return run_and_report.planned(
        given.root,
        wanted,
        jobs,
        controls=controls,
        sanitizer=tool,
        shard=note,
        num_long=planner.num_long,
    )


def finish(
    store: RunStore, pool: JobPool, given: RunOptions, accepted: RunEntry | None = None
) -> int:
    """Run what is left of a planned run, and print it. Returns the exit code."""
    screen = _screen(given, pool)
    max_failures = 1 if given.first_failure else given.max_failures
    loudness = given.verbose - given.quiet
    work = partial(
        run_and_report.work_on,
        store,
        pool,
        screen,
        max_failures=max_failures,
        loudness=loudness,
        shrink_seconds=given.shrink_seconds,
        # Which three crash is chance, so failures that were accepted are compared with all.
        keep_going=given.keep_going or given.against is not None,
    )

    def report(view: RunView) -> int:
        if loudness < 0:
            screen.print(totals_line(view))
        else:
            print_run(screen, view, with_table=loudness > 0)
        if (fault := store.plan.options.get("fault")) and {
            one.verdict for one in store.results()
        } == {Verdict.PASS}:
            say(
                screen,
                f"{fault}: no case fails with it; leave out the selector to run the scenarios that"
                " declare it",
            )
        if given.json:
            print_json(summarise(store, view.coverages))
        runs = run_and_report.past_runs(given.history, store.path.parent)
        return code_of(store, given.fail_on or (), runs, accepted, screen)

    return run_and_report.work_and_report(store, work, stop=pool.close, report=report)


def cut(
    text: str, jobs: Sequence[Job], controls: Sequence[Control]
) -> tuple[list[Job], list[Control], ShardNote]:
    """The jobs and controls of shard `text` (``I/N``), and the note that merging it needs.

    A control stays in the shard of its clean measurement. Raises InputError for a malformed or an
    empty shard.
    """
    shard = Shard.parsed(text)
    part = set(split([job.key for job in jobs], shard.count)[shard.index - 1])
    if not part:
        raise InputError(
            f"--shard {text}: {len(jobs)} cases leave nothing for this shard; cut into fewer"
        )
    mine = [job for job in jobs if job.key in part]
    ids = {job.case.id for job in mine}
    note = ShardNote(
        index=shard.index,
        count=shard.count,
        keys=tuple(job.key for job in jobs),
        controls=tuple(control.job.key for control in controls),
    )
    return mine, [control for control in controls if control.job.case.id in ids], note


def code_of(
    store: RunStore,
    fail_on: Collection[str],
    runs: PastRuns | None,
    accepted: RunEntry | None,
    screen: Console,
) -> int:
    """The exit code: 1 for a failure or a fault not caught, 3 for an error, 2 if all cases (of a
    kernel) were skipped.

    It is 0 otherwise.

    With `skip` and `error` in `fail_on`, these are failures too. With `new`, failures of the run
    `accepted` do not count. Without it, the last green run among `runs` decides: all failures are
    new since then.
    """
    run = entry_of(store)
    counted = (*FAILED, WRONG_BLAME, MISSED, *fail_on)
    failed = {key for key, entry in run.entries.items() if entry.verdict in counted}
    if failed and "new" in fail_on and runs is not None:
        # Since a green run all failures are new, so only an accepted run can make some of them old.
        before = accepted or last_green(run, runs, counted)
        for reason in runs.damaged:
            unreadable.note(reason)
        known = accepted.entries if accepted else {}
        old = {key for key in failed if key in known and known[key].verdict in counted}
        kind = "accepted" if accepted else "last green"
        since = (
            f"since {before.run_id} ({kind} run)" if before else "as there is no green run before"
        )
        screen.print(
            f"{len(failed - old)} of {num(len(failed), 'failure')} new {since}",
            markup=False,
            soft_wrap=True,
        )
        failed -= old
    if failed:
        return 1
    verdicts = {result.verdict.value for result in store.results()} | {
        entry.verdict for entry in run.faults
    }
    if verdicts & {"error", "not-run"}:
        return 3
    return 2 if verdicts == {"skip"} or run_and_report.refusing_kernels(store) else 0
