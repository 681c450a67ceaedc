"""`mla-harness selftest`: each scenario clean, then with each of its faults; a fault that gets through is a failure."""

from __future__ import annotations

import json as jsonlib
import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.executor import LOCAL, Executor, RayAddress
from harness.cli.recording import Branch, Commit, History
from harness.cli.run import Device, Json, Out, Scenarios, Seed, Selectors, Tag, Timeout, Workers

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from harness.records import CaseResult, Job
    from harness.results.store import RunStore
    from harness.run.pool import Pool
    from harness.scenario.schema import FaultUse


def selftest(
    selectors: Selectors = None,
    tag: Tag = None,
    device: Device = "auto",
    seed: Seed = 0,
    out: Out = None,
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
    from harness.cli.session import Wanted, load, make_jobs
    from harness.errors import InputError
    from harness.plan.expand import fault_cases
    from harness.plan.selection import select, select_scenarios
    from harness.results.store import DEFAULT_RUNS, RunStore

    wanted = Wanted(
        selectors=tuple(selectors or ()),
        tag=tag,
        device=device,
        seed=seed,
        timeout_seconds=timeout,
        scenarios=scenarios,
    )
    known = load(wanted)
    chosen = select_scenarios(known, wanted.selectors, tag=tag)
    cases = [] if no_clean else select(known, wanted.selectors, tag=tag, seed=seed)
    pairs = [pair for scenario in chosen for pair in fault_cases(scenario, seed=seed)]
    if no_clean and not pairs:
        raise InputError("--faults-only: the selected scenarios declare no fault; select others")
    with pool_for(executor, ray_address, workers) as pool:
        clean = make_jobs(cases, wanted, pool)
        faulty = [(use, make_jobs([case], wanted, pool, fault=use.name)[0]) for use, case in pairs]
        command = shlex.join(["mla-harness", *sys.argv[1:]])
        store = RunStore.create(out or DEFAULT_RUNS, clean, command=command, options=wanted.reproduction())
        store.note_source(source_under_test(commit, branch))
        raise typer.Exit(_perform(store, pool, faulty, as_json=json, history=history_file(history)))


def _perform(
    store: RunStore, pool: Pool, faulty: list[tuple[FaultUse, Job]], *, as_json: bool, history: Path | None
) -> int:
    from harness.cli.recording import keep
    from harness.cli.run import INTERRUPTED
    from harness.cli.session import blame_failures, stoppable
    from harness.report.terminal import LiveProgress, console_for
    from harness.report.write import write_reports

    console = console_for(sys.stderr if as_json else sys.stdout)
    skipped: list[CaseResult] = []
    is_interrupted = False
    try:
        with stoppable(store), LiveProgress(console, len(store.plan.jobs) + len(faulty)) as live:
            found = _run_both(store, pool, faulty, live)
            skipped = judge_faults(store, pool, faulty, found)
            blame_failures(store, pool)
    except KeyboardInterrupt:
        is_interrupted = True
        pool.close()
    write_reports(store, keep(store, history))
    is_good = _print(console, store, skipped, num_faults=len(faulty))
    if as_json:
        sys.stdout.write(jsonlib.dumps(_object(store, skipped, is_good), allow_nan=False, indent=1) + "\n")
    if is_interrupted:
        return INTERRUPTED
    return 0 if is_good else 1


def _run_both(store: RunStore, pool: Pool, faulty: list[tuple[FaultUse, Job]], live: Any) -> dict[str, CaseResult]:
    """Run clean and faulty jobs together; clean results go to the store, those of faults are returned by key."""
    from harness.cli.session import longest_first

    store.note_environment(pool.start().model_dump(mode="json"))
    clean_keys = {job.key for job in store.plan.jobs}
    found: dict[str, CaseResult] = {}
    jobs = longest_first([*store.plan.jobs, *(job for _, job in faulty)])
    for result in pool.run([store.placed(job) for job in jobs], live.on_start):
        is_clean = result.key in clean_keys
        if is_clean:
            store.add(result)
        else:
            found[result.key] = result
        live.on_result(result, announce=is_clean)
    return found


def judge_faults(
    store: RunStore, pool: Pool, faulty: list[tuple[FaultUse, Job]], found: dict[str, CaseResult]
) -> list[CaseResult]:
    """Blame and judge each fault and store what became of it; returns the results of those that could not run."""
    from harness.cli.session import FAILED, find_blame
    from harness.diagnose.faults import judge_fault
    from harness.records import Blame, Verdict

    failing = [
        (job, found[job.key]) for _, job in faulty if found[job.key].verdict in FAILED and found[job.key].findings
    ]
    blames = find_blame(pool, failing)
    skipped = []
    for use, job in faulty:
        result = found[job.key]
        if result.verdict is Verdict.SKIP:
            skipped.append(result)
            continue
        blame, seconds = blames.get(job.key, (Blame(), 0.0))
        store.add_fault(judge_fault(use, result, blame, seconds))
    return skipped


def _print(console: Console, store: RunStore, skipped: list[CaseResult], *, num_faults: int) -> bool:
    """Print the outcome; returns whether all of it is good."""
    from harness.records import Verdict
    from harness.report.terminal import BAD, fault_line, print_failures, print_skips, totals_line, verdict_table
    from harness.report.terminal_accuracy import print_accuracy
    from harness.results.summary import accuracy_records

    results, faults, blames = store.results(), store.faults(), store.blames()
    bad = [result for result in results if result.verdict in BAD]
    if results:
        console.print(verdict_table(results))
    print_accuracy(console, accuracy_records([*results, *faults]))
    print_failures(console, store, results, blames)
    for fault in faults:
        console.print(fault_line(fault), soft_wrap=True)
    print_skips(console, [*results, *skipped])
    num_caught = sum(fault.caught for fault in faults)
    num_judged = num_faults - len(skipped)
    console.print(f"faults caught: {num_caught} of {num_judged}" + (f", {len(skipped)} skipped" if skipped else ""))
    if results:
        console.print("clean cases:", totals_line(results, store.plan.seconds))
    console.print(f"report: {store.path / 'report.html'}", soft_wrap=True)
    something_ran = bool(faults) or any(result.verdict is Verdict.PASS for result in results)
    return not bad and num_caught == num_judged and something_ran


def _object(store: RunStore, skipped: list[CaseResult], is_good: bool) -> dict[str, Any]:
    from harness.results.summary import summarise, totals

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
        "skipped_faults": [{"fault": r.fault, "case": r.id, "reason": r.reason} for r in skipped],
    }
