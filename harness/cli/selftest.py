"""`mla-harness selftest`: each scenario clean, then with each of its faults; a fault that gets through is a failure."""

from __future__ import annotations

import json as jsonlib
import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.executor import LOCAL, Executor, RayAddress
from harness.cli.recording import Branch, Commit, History
from harness.cli.run import Device, Json, Out, Resume, Scenarios, Seed, Selectors, Tag, Timeout, Workers

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from harness.cli.session import Wanted
    from harness.core.records import CaseResult
    from harness.run.pool import Pool
    from harness.store.run_folder import Control, RunStore


def selftest(
    context: typer.Context,
    selectors: Selectors = None,
    tag: Tag = None,
    device: Device = "auto",
    seed: Seed = 0,
    out: Out = None,
    resume: Resume = None,
    timeout: Timeout = 60.0,
    workers: Workers = None,
    executor: Executor = LOCAL,
    ray_address: RayAddress = None,
    scenarios: Scenarios = None,
    history: History = None,
    commit: Commit = "",
    branch: Branch = "",
    json: Json = False,
    no_clean: Annotated[bool, typer.Option("--faults-only", help="Leave the clean cases out.")] = False,
) -> None:
    """Put every known bug back; each must be caught."""
    from harness.cli.executor import pool_for
    from harness.cli.recording import history_file, source_under_test
    from harness.cli.resuming import refuse_new_plan, refuse_other_kind
    from harness.cli.session import Wanted
    from harness.store.run_folder import DEFAULT_RUNS, RunStore, find_run

    wanted = Wanted(
        selectors=tuple(selectors or ()),
        tag=tag,
        device=device,
        seed=seed,
        timeout_seconds=timeout,
        scenarios=scenarios,
    )
    resumed = None
    if resume is not None:
        refuse_new_plan(context)
        resumed = RunStore.open(find_run(resume, out or DEFAULT_RUNS))
        refuse_other_kind(resumed, "selftest")
    with pool_for(executor, ray_address, workers) as pool:
        store = resumed or _planned(wanted, pool, out or DEFAULT_RUNS, no_clean=no_clean)
        store.note_source(source_under_test(commit, branch))
        raise typer.Exit(perform(store, pool, as_json=json, history=history_file(history)))


def _planned(wanted: Wanted, pool: Pool, root: Path, *, no_clean: bool) -> RunStore:
    from harness.cli.session import load, make_jobs
    from harness.core.errors import InputError
    from harness.scenario.expand import fault_cases
    from harness.scenario.selection import select, select_scenarios
    from harness.store.run_folder import Control, RunStore

    known = load(wanted)
    chosen = select_scenarios(known, wanted.selectors, tag=wanted.tag)
    cases = [] if no_clean else select(known, wanted.selectors, tag=wanted.tag, seed=wanted.seed)
    pairs = [pair for scenario in chosen for pair in fault_cases(scenario, seed=wanted.seed)]
    if no_clean and not pairs:
        raise InputError("--faults-only: the selected scenarios declare no fault; select others")
    return RunStore.create(
        root,
        make_jobs(cases, wanted, pool),
        command=shlex.join(["mla-harness", *sys.argv[1:]]),
        options=wanted.reproduction(),
        controls=[Control(use=use, job=make_jobs([case], wanted, pool, fault=use.name)[0]) for use, case in pairs],
        is_selftest=True,
    )


def perform(store: RunStore, pool: Pool, *, as_json: bool, history: Path | None = None) -> int:
    """Do what is left of a selftest, write its reports whatever happens, print it, and return the exit code."""
    from harness.cli.recording import keep
    from harness.cli.resuming import command_to_resume
    from harness.cli.run import INTERRUPTED
    from harness.cli.session import NOTHING_RAN, blame_failures, stoppable
    from harness.core.errors import HarnessError
    from harness.report.terminal import LiveProgress, console_for
    from harness.report.write import write_reports

    console = console_for(sys.stderr if as_json else sys.stdout)
    trouble: HarnessError | None = None
    is_interrupted = False
    try:
        with stoppable(store):
            clean, faulty = store.unfinished(), _untried(store)
            with LiveProgress(console, len(clean) + len(faulty)) as live:
                _run_both(store, pool, live)
            with console.status("looking for the memory to blame"):
                judge_faults(store, pool)
                blame_failures(store, pool)
    except KeyboardInterrupt:
        is_interrupted = True
        pool.close()
    except HarnessError as error:
        trouble = error
    write_reports(store, keep(store, history))
    code = _code(store)
    _print(console, store)
    if as_json:
        sys.stdout.write(jsonlib.dumps(_object(store, is_good=code == 0), allow_nan=False, indent=1) + "\n")
    if is_interrupted:
        print(f"interrupted; continue with: {command_to_resume(store)}", file=sys.stderr)
        return INTERRUPTED
    if trouble is not None:
        raise trouble
    if code == 2:
        print(NOTHING_RAN, file=sys.stderr)
    return code


def _untried(store: RunStore) -> list[Control]:
    tried = store.tried()
    return [control for control in store.plan.controls if control.job.key not in tried]


def _run_both(store: RunStore, pool: Pool, live: Any) -> None:
    """Run clean and faulty jobs together; each result is on disk before its worker gets another."""
    from harness.cli.session import longest_first

    store.note_environment(pool.start().model_dump(mode="json"))
    faulty = {control.job.key: control.job for control in _untried(store)}
    jobs = longest_first([*store.unfinished(), *faulty.values()])
    for result in pool.run([store.placed(job) for job in jobs], live.on_start):
        is_clean = result.key not in faulty
        if is_clean:
            store.add(result)
        else:
            store.add_tried(result)
        live.on_result(result, announce=is_clean)


def judge_faults(store: RunStore, pool: Pool) -> None:
    """Blame and judge each fault that was tried and is not judged yet, and store what became of it."""
    from harness.cli.session import FAILED, find_blame
    from harness.core.records import Blame, Verdict
    from harness.diagnose.judge_fault import judge_fault

    tried = store.tried()
    todo = [(control, tried[control.job.key]) for control in store.unfinished_controls() if control.job.key in tried]
    failing = [(control.job, result) for control, result in todo if result.verdict in FAILED and result.findings]
    blames = find_blame(pool, failing)
    for control, result in todo:
        if result.verdict is not Verdict.SKIP:
            blame, seconds = blames.get(control.job.key, (Blame(), 0.0))
            store.add_fault(judge_fault(control.use, result, blame, seconds))


def _skipped(store: RunStore) -> list[CaseResult]:
    """The results of faults that could not run here."""
    from harness.core.records import Verdict

    tried = store.tried()
    found = (tried.get(control.job.key) for control in store.plan.controls)
    return [result for result in found if result is not None and result.verdict is Verdict.SKIP]


def _code(store: RunStore) -> int:
    """As for `run`: 0 all good, 1 a regression or a missed fault, 2 nothing ran, 3 the harness could not judge."""
    from harness.cli.session import exit_code
    from harness.core.records import Verdict

    results, tried = store.results(), store.tried()
    verdicts = [result.verdict for result in [*results, *tried.values()]]
    if verdicts and all(verdict is Verdict.SKIP for verdict in verdicts) and not _untried(store):
        return 2
    return exit_code(results, store.faults(), tried.values()) or (3 if _num_unjudged(store) else 0)


def _num_unjudged(store: RunStore) -> int:
    """Faults of which nothing is known: an interrupted selftest has some."""
    return len(store.unfinished_controls()) - len(_skipped(store))


def _print(console: Console, store: RunStore) -> None:
    """Print the outcome."""
    from harness.report.terminal import fault_line, print_failures, print_skips, totals_line, verdict_table
    from harness.report.terminal_accuracy import print_accuracy
    from harness.store.summary import accuracy_records

    results, faults, blames, skipped = store.results(), store.faults(), store.blames(), _skipped(store)
    if results:
        console.print(verdict_table(results))
    print_accuracy(console, accuracy_records([*results, *faults]))
    print_failures(console, store, results, blames)
    for fault in faults:
        console.print(fault_line(fault), soft_wrap=True)
    print_skips(console, [*results, *skipped])
    counts = {"skipped": len(skipped), "not judged yet": _num_unjudged(store)}
    more = "".join(f", {count} {word}" for word, count in counts.items() if count)
    num_judged = len(store.plan.controls) - len(skipped)
    console.print(f"faults caught: {sum(fault.caught for fault in faults)} of {num_judged}{more}")
    if results:
        console.print("clean cases:", totals_line(results, store.plan.seconds))
    console.print(f"report: {store.path / 'report.html'}", soft_wrap=True)


def _object(store: RunStore, *, is_good: bool) -> dict[str, Any]:
    from harness.store.summary import summarise, totals

    results, faults = store.results(), store.faults()
    summary = summarise(store.plan, results, faults)
    return {
        "ok": is_good,
        "run_id": store.plan.run_id,
        "directory": str(store.path),
        "seconds": store.plan.seconds,
        "totals": totals(results),
        "not_clean": [case for case in summary["cases"] if case["verdict"] not in ("pass", "skip")],
        "faults": [fault.model_dump(mode="json") for fault in faults],
        "skipped_faults": [{"fault": r.fault, "case": r.id, "reason": r.reason} for r in _skipped(store)],
    }
