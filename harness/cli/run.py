"""`mla-harness run`: plan, run, blame, report."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.executor import LOCAL, Executor, RayAddress
from harness.cli.recording import Branch, Commit, History

if TYPE_CHECKING:
    from harness.cli.session import Wanted
    from harness.run.pool import Pool
    from harness.store.run_folder import RunStore

INTERRUPTED = 130

Selectors = Annotated[
    list[str] | None, typer.Argument(metavar="[SELECTOR]...", help="A scenario, a case id, a PR number.")
]
Tag = Annotated[str | None, typer.Option("-m", metavar="TAG", help="Only cases with this tag, or 'not TAG'.")]
Device = Annotated[str, typer.Option("--device", metavar="auto|cpu|cuda", help="Where the cases run.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**31 - 1, help="Seed of inputs and of drawn cases.")]
Workers = Annotated[int | None, typer.Option("-n", min=1, max=64, help="Worker processes; default: cores, at most 4.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds that one case may take.")]
Scenarios = Annotated[Path | None, typer.Option("--scenarios", metavar="DIR", help="Another folder of scenarios.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, everything else on stderr.")]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Where run directories are made [reports/runs].")
]

Resume = Annotated[
    str | None, typer.Option("--resume", metavar="RUN", help="Continue a run: its directory, id or 'latest'.")
]


def run(
    context: typer.Context,
    selectors: Selectors = None,
    tag: Tag = None,
    device: Device = "auto",
    kernel: Annotated[str | None, typer.Option("--kernel", help="Judge this kernel wherever its op is used.")] = None,
    plugin: Annotated[list[Path] | None, typer.Option("--plugin", help="A Python file with kernels of yours.")] = None,
    fault: Annotated[str | None, typer.Option("--fault", metavar="NAME", help="Put this known bug back.")] = None,
    seed: Seed = 0,
    out: Out = None,
    resume: Resume = None,
    timeout: Timeout = 60.0,
    workers: Workers = None,
    executor: Executor = LOCAL,
    ray_address: RayAddress = None,
    scenarios: Scenarios = None,
    sanitizer: Annotated[
        str | None,
        typer.Option("--sanitizer", metavar="TOOL", help="Watch one case: initcheck, memcheck or racecheck."),
    ] = None,
    shard: Annotated[
        str | None, typer.Option("--shard", metavar="I/N", help="Only part I of N, cut evenly by the history's times.")
    ] = None,
    shrink_seconds: Annotated[
        float, typer.Option("--shrink-seconds", min=0.0, help="Also look so long for the smallest failing cases.")
    ] = 0.0,
    history: History = None,
    commit: Commit = "",
    branch: Branch = "",
    json: Json = False,
) -> None:
    """Run cases, blame failures, write reports."""
    from harness.cli.recording import history_file, source_under_test
    from harness.cli.resuming import refuse_new_plan, refuse_other_kind
    from harness.cli.session import Wanted
    from harness.run.sanitizer import check
    from harness.store.run_folder import DEFAULT_RUNS, RunStore, find_run

    wanted = Wanted(
        selectors=tuple(selectors or ()), tag=tag, device=device, kernel=kernel,
        plugins=tuple(path.resolve() for path in plugin or ()), fault=fault, seed=seed, timeout_seconds=timeout,
        scenarios=scenarios,
    )  # fmt: skip
    kept = history_file(history)
    resumed = None
    if resume is not None:
        refuse_new_plan(context)
        resumed = RunStore.open(find_run(resume, out or DEFAULT_RUNS))
        refuse_other_kind(resumed, "run")
        sanitizer = resumed.plan.sanitizer
        if sanitizer and (left := resumed.unfinished()):
            check(sanitizer, left)
    with _pool(workers, sanitizer, executor, ray_address) as pool:
        store = resumed or _planned(wanted, pool, out or DEFAULT_RUNS, shard, kept)
        store.note_source(source_under_test(commit, branch, wanted.plugins))
        raise typer.Exit(perform(store, pool, as_json=json, shrink_seconds=shrink_seconds, history=kept))


def _pool(workers: int | None, sanitizer: str | None, executor: str, ray_address: str | None) -> Pool:
    from harness.cli.executor import pool_for
    from harness.core.errors import InputError
    from harness.run.sanitizer import SanitizedPool

    if sanitizer is None:
        return pool_for(executor, ray_address, workers)
    if executor != LOCAL:
        raise InputError("--sanitizer: watches a case on this machine; leave out --executor")
    pool = SanitizedPool(1)
    pool.tool = sanitizer
    return pool


def _planned(wanted: Wanted, pool: Pool, root: Path, shard: str | None, history: Path | None) -> RunStore:
    from harness.cli.session import plan_controls, plan_jobs
    from harness.cli.sharding import cut
    from harness.run.sanitizer import SanitizedPool, check
    from harness.store.run_folder import RunStore

    jobs = plan_jobs(wanted, pool)
    if isinstance(pool, SanitizedPool):
        check(pool.tool, jobs)
    command = shlex.join(["mla-harness", *sys.argv[1:]])
    controls = plan_controls(jobs, wanted, pool)
    note = None
    tool = pool.tool if isinstance(pool, SanitizedPool) else None
    if shard is not None:
        jobs, controls, note = cut(shard, jobs, controls, history)
    return RunStore.create(
        root, jobs, command=command, options=wanted.reproduction(), controls=controls, sanitizer=tool, shard=note
    )


def perform(
    store: RunStore, pool: Pool, *, as_json: bool, shrink_seconds: float = 0.0, history: Path | None = None
) -> int:
    """Do what is left of a run, write its reports whatever happens, print it, and return the exit code.

    `history` is the file that the results are added to, None for none.
    """
    from harness.cli.recording import keep
    from harness.cli.resuming import command_to_resume
    from harness.cli.session import NOTHING_RAN, blame_failures, carry_out, exit_code, stoppable
    from harness.cli.shrink import shrink_failures
    from harness.core.errors import HarnessError
    from harness.core.records import Verdict
    from harness.report.terminal import LiveProgress, console_for, print_run
    from harness.report.write import write_reports
    from harness.store.summary import summarise, to_json

    console = console_for(sys.stderr if as_json else sys.stdout)
    trouble: HarnessError | None = None
    is_interrupted = False
    try:
        with stoppable(store):
            jobs = store.unfinished()
            with LiveProgress(console, len(jobs) + len(store.unfinished_controls())) as live:
                carry_out(store, pool, jobs, live)
            with console.status("looking for the memory to blame"):
                blame_failures(store, pool)
            if shrink_seconds:
                with console.status("looking for the smallest failing cases"):
                    shrink_failures(store, pool, shrink_seconds)
    except KeyboardInterrupt:
        is_interrupted = True
        pool.close()
    except HarnessError as error:
        trouble = error
    results = store.results()
    write_reports(store, keep(store, history))
    print_run(console, store)
    if as_json:
        sys.stdout.write(to_json(summarise(store.plan, results, store.faults())))
    if is_interrupted:
        print(f"interrupted; continue with: {command_to_resume(store)}", file=sys.stderr)
        return INTERRUPTED
    if trouble is not None:
        raise trouble
    if results and all(result.verdict is Verdict.SKIP for result in results):
        print(NOTHING_RAN, file=sys.stderr)
        return 2
    return exit_code(results) or int(not all(fault.caught for fault in store.faults()))
