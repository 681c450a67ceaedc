"""`mla-harness repro PR`: the scenarios of one upstream reference, without and with its faults, side by side.

With `--script`, a failing case as a script of its own instead (see :mod:`harness.cli.export`).
"""

from __future__ import annotations

import json as jsonlib
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.run import Device, Json, Scenarios, Seed, Timeout, Workers

if TYPE_CHECKING:
    from rich.console import Console

    from harness.core.cases import Case, Job
    from harness.core.records import Blame, CaseResult, FaultResult, Shrunk
    from harness.run.runner import WorkerPool
    from harness.scenario.schema import FaultUse, Scenario

MAX_CASES = 16
"""Cases of a scenario that are shown; a large matrix says the same many times."""


def repro(
    reference: Annotated[
        str, typer.Argument(metavar="PR", help="36540 or vllm-project/vllm#36540; with --script also a case id.")
    ],
    script: Annotated[
        Path | None, typer.Option("--script", metavar="FILE", help="Write a failing case as a script of its own.")
    ] = None,
    as_test: Annotated[bool, typer.Option("--pytest", help="Write the script as a test.")] = False,
    fault: Annotated[str | None, typer.Option("--fault", metavar="NAME", help="The bug that the script shows.")] = None,
    kernel: Annotated[str | None, typer.Option("--kernel", help="The kernel that the script judges.")] = None,
    plugin: Annotated[list[Path] | None, typer.Option("--plugin", help="A Python file with kernels of yours.")] = None,
    device: Device = "auto",
    seed: Seed = 0,
    timeout: Timeout = 60.0,
    workers: Workers = None,
    scenarios: Scenarios = None,
    shrink_seconds: Annotated[
        float, typer.Option("--shrink-seconds", min=0.0, help="How long to look for the smallest case of a fault.")
    ] = 20.0,
    json: Json = False,
) -> None:
    """Show one upstream bug without and with it, or write a failing case as a script of its own."""
    from harness.cli.export import export
    from harness.cli.session import NOTHING_RAN, Wanted, load
    from harness.core.errors import InputError
    from harness.report.terminal import console_for
    from harness.run.runner import WorkerPool

    console = console_for(sys.stderr if json else sys.stdout)
    if script is not None:
        wanted = Wanted(
            selectors=(reference,), device=device, kernel=kernel, fault=fault, seed=seed, timeout_seconds=timeout,
            plugins=tuple(path.resolve() for path in plugin or ()), scenarios=scenarios,
        )  # fmt: skip
        with WorkerPool(workers) as pool:
            export(wanted, pool, console, script, is_pytest=as_test, seconds=shrink_seconds)
        raise typer.Exit(0)
    if as_test or fault or kernel or plugin:
        raise InputError("--pytest, --fault, --kernel and --plugin are about a script; add --script FILE")
    wanted = Wanted(device=device, seed=seed, timeout_seconds=timeout, scenarios=scenarios)
    chosen = _scenarios_of(reference, load(wanted))
    shown: dict[str, list[dict[str, Any]]] = {"scenarios": [], "faults": []}
    with WorkerPool(workers) as pool:
        codes = [_show(console, pool, wanted, scenario, reference, shown, shrink_seconds) for scenario in chosen]
    # A scenario of which nothing ran says nothing; it decides only where all of them are like that.
    code = next((worst for worst in (1, 3, 0) if worst in codes), 2)
    if json:
        sys.stdout.write(jsonlib.dumps({"ok": code == 0, **shown}, allow_nan=False, indent=1) + "\n")
    if code == 2:
        print(NOTHING_RAN, file=sys.stderr)
    raise typer.Exit(code)


def _scenarios_of(reference: str, known: list[Scenario]) -> list[Scenario]:
    from harness.core.errors import InputError
    from harness.scenario.selection import selects_scenario, unknown_reference

    chosen = [scenario for scenario in known if reference != scenario.name and selects_scenario(reference, scenario)]
    if chosen:
        return chosen
    if reference.partition("[")[0] in (scenario.name for scenario in known):
        what = "case" if "[" in reference else "scenario"
        again = shlex.join(["mla-harness", "run", reference])
        raise InputError(
            f"{reference!r} is a {what}, which repro takes only with --script FILE, and an upstream reference without; "
            f"run it with: {again}"
        )
    raise unknown_reference(reference, known)


def _faults_of(reference: str, scenario: Scenario) -> list[str]:
    """The scenario's faults that come from `reference`; all of them when it is about a lesson that they teach."""
    from harness.core.catalog import FAULTS

    number = reference.rpartition("#")[2]
    names = list(dict.fromkeys(use.name for use in scenario.faults))
    own = [name for name in names if FAULTS.get(name).ref.rpartition("#")[2] == number]
    return own or names


def _show(
    console: Console, pool: WorkerPool, wanted: Any, scenario: Scenario, reference: str,
    shown: dict[str, list[dict[str, Any]]], shrink_seconds: float,
) -> int:  # fmt: skip
    """Run and print one scenario; returns 0 when it is clean and each fault is caught, 2 when nothing of it ran."""
    from harness.cli.session import exit_code
    from harness.core.catalog import FAULTS
    from harness.core.records import Verdict
    from harness.report.terminal import print_skips
    from harness.scenario.expand import fault_cases
    from harness.scenario.selection import select

    faults = _faults_of(reference, scenario)
    declared = [(use, case) for use, case in fault_cases(scenario, seed=wanted.seed) if use.name in faults]
    by_id = {case.id: case for case in [*(case for _, case in declared), *select([scenario], seed=wanted.seed)]}
    cases = list(by_id.values())[: max(MAX_CASES, len(declared))]
    jobs, results, blames = _run(console, pool, wanted, cases, faults)

    _print_title(console, scenario)
    clean = [results[case.id] for case in cases]
    is_skipped = all(result.verdict is Verdict.SKIP for result in results.values())
    judged = _judged(declared, results, blames)
    smallest: dict[str, Shrunk] = {}
    for fault in () if is_skipped else faults:
        console.print(f"\nfault {fault} ({FAULTS.get(fault).ref}): {FAULTS.get(fault).summary}", soft_wrap=True)
        by_case = [(results[case.id], results[f"{case.id}!{fault}"]) for case in cases]
        console.print(_side_by_side(by_case, blames))
        _print_example(console, [faulty for _, faulty in by_case], blames)
        own = [(job, results[job.key]) for job in jobs if job.fault == fault]
        smallest |= _print_smallest(console, pool, wanted, own, blames, shrink_seconds)
        _print_judged(console, [found for found in judged if found.fault == fault])
    for job in jobs:
        shown["scenarios"].append(_as_object(job, results[job.key], blames.get(job.key), smallest.get(job.key)))
    shown["faults"] += [found.model_dump(mode="json") for found in judged]
    if is_skipped:
        print_skips(console, clean)
        console.print()
        return 2
    if not faults:
        _print_counts(console, clean)
    _print_commands(console, cases[0].id, faults)
    return exit_code(clean, judged, [results[f"{case.id}!{use.name}"] for use, case in declared])


def _run(
    console: Console, pool: WorkerPool, wanted: Any, cases: list[Case], faults: list[str]
) -> tuple[list[Job], dict[str, CaseResult], dict[str, Blame]]:
    """Run each case as it is and with each fault; returns the jobs, and by their keys what they gave and the blame."""
    from harness.cli.session import find_blame, make_jobs, with_first_nan

    jobs = make_jobs(cases, wanted, pool)
    for fault in faults:
        jobs += make_jobs(cases, wanted, pool, fault=fault)
    with console.status(f"running {len(jobs)} cases of {cases[0].scenario}"):
        results = dict(zip([job.key for job in jobs], pool.run_in_order(jobs), strict=True))
        failing = [(job, results[job.key]) for job in jobs if results[job.key].findings]
        blames = {key: blame for key, (blame, _) in find_blame(pool, failing).items()}
        blames |= with_first_nan(pool, _first_of_each(failing), blames)
    return jobs, results, blames


def _judged(
    declared: list[tuple[FaultUse, Case]], results: dict[str, CaseResult], blames: dict[str, Blame]
) -> list[FaultResult]:
    """What became of each fault on the case that its scenario tries it on; those that could not run are left out."""
    from harness.core.records import Blame, Verdict
    from harness.diagnose.judge_fault import judge_fault

    tried = [(use, results[f"{case.id}!{use.name}"]) for use, case in declared]
    return [
        judge_fault(use, result, blames.get(result.key, Blame()), 0.0)
        for use, result in tried
        if result.verdict is not Verdict.SKIP
    ]


def _print_title(console: Console, scenario: Scenario) -> None:
    from harness.report.wording import one_line

    console.print(f"{scenario.name}: {one_line(scenario.summary)}", style="bold", soft_wrap=True)
    console.print(", ".join(scenario.refs), style="dim", soft_wrap=True)
    if scenario.why:
        console.print(" ".join(scenario.why.split()))


def _print_counts(console: Console, clean: list[CaseResult]) -> None:
    from harness.report.wording import num
    from harness.store.summary import totals

    verdicts = ", ".join(f"{count} {name}" for name, count in totals(clean).items() if count)
    console.print(f"\nno fault of its own; {num(len(clean), 'case')} as they are: {verdicts}")


def _print_judged(console: Console, judged: list[FaultResult]) -> None:
    from harness.report.terminal import fault_line

    for found in judged:
        console.print(fault_line(found), soft_wrap=True)
    if not judged:
        console.print("not judged: the case that the scenario tries it on was skipped", style="dim")


def _side_by_side(pairs: list[tuple[CaseResult, CaseResult]], blames: dict[str, Blame]) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from harness.report.terminal import verdict_text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("case", "without", "with", "found by", "blame"):
        table.add_column(name, overflow="fold", no_wrap=name in ("without", "with"))
    for clean, faulty in pairs:
        blame = blames.get(faulty.key)
        blamed = Text(", ".join(blame.sites) or "no site", style="bold") if blame else Text("")
        oracles = dict.fromkeys(finding.oracle for finding in faulty.findings)
        verdicts = (verdict_text(clean.verdict.value), verdict_text(faulty.verdict.value))
        table.add_row(_text(clean.id), *verdicts, _text(", ".join(oracles) or faulty.reason), blamed)
    return table


def _print_example(console: Console, results: list[CaseResult], blames: dict[str, Blame]) -> None:
    """What each oracle found in the first case that fails, and why the blame is where it is."""
    from harness.core.records import Verdict
    from harness.report.terminal import finding_line
    from harness.report.wording import first_nan_lines, one_line

    result = next((result for result in results if result.findings), None)
    if result is None and all(result.verdict is Verdict.SKIP for result in results):
        return
    if result is None:
        console.print("no case fails with this fault: it gets through", style="bold red")
        return
    console.print(_text(f"in {result.id}:"), soft_wrap=True)
    first: dict[str, str] = {}
    for finding in result.findings:
        first.setdefault(finding.oracle, finding_line(finding))
    for line in first.values():
        console.print("  " + line, soft_wrap=True)
    blame = blames.get(result.key)
    if blame is not None:
        console.print(f"  blame: {', '.join(blame.sites) or 'no site'} ({one_line(blame.how)})", soft_wrap=True)
        for line in first_nan_lines(blame):
            console.print("  " + line, soft_wrap=True)


def _first_of_each(failing: list[tuple[Job, CaseResult]]) -> list[tuple[Job, CaseResult]]:
    """The failure that is shown for each fault."""
    first: dict[str | None, tuple[Job, CaseResult]] = {}
    for job, result in failing:
        first.setdefault(job.fault, (job, result))
    return list(first.values())


def _print_smallest(
    console: Console, pool: WorkerPool, wanted: Any, tried: list[tuple[Job, CaseResult]], blames: dict[str, Blame],
    seconds: float,
) -> dict[str, Shrunk]:  # fmt: skip
    """Shrink the first case that fails with a fault, and print the way; nothing where a trial would take minutes."""
    from harness.cli.shrink import command_of, declared_oracle
    from harness.diagnose.shrink import shrink, why_not
    from harness.report.terminal_shrunk import print_shrunk

    failing = next(((job, result) for job, result in tried if result.findings), None)
    if failing is None or why_not(failing[0]) or not seconds:
        return {}
    job, result = failing
    with console.status("trying smaller cases"):
        oracle = declared_oracle(wanted, job)
        shrunk = shrink(pool, job, result, blame=blames.get(job.key), oracle=oracle, seconds=seconds)
    console.print("smaller, for the same reason:")
    print_shrunk(console, shrunk, command_of(shrunk, wanted))
    return {job.key: shrunk}


def _text(value: str) -> Any:
    from rich.text import Text

    from harness.report.wording import printable

    return Text(printable(value))


def _as_object(job: Job, result: CaseResult, blame: Blame | None, smallest: Shrunk | None) -> dict[str, Any]:
    return {
        "case": job.case.id,
        "fault": job.fault,
        "verdict": result.verdict.value,
        "reason": result.reason,
        "findings": [finding.model_dump(mode="json") for finding in result.findings],
        "blame": blame.model_dump(mode="json") if blame else None,
        "smallest": smallest.model_dump(mode="json") if smallest else None,
    }


def _print_commands(console: Console, case_id: str, faults: list[str]) -> None:
    console.print(f"\nsee one case in full: {shlex.join(['mla-harness', 'show', case_id])}", soft_wrap=True)
    for fault in faults:
        console.print(
            f"run it with the bug: {shlex.join(['mla-harness', 'run', case_id, '--fault', fault])}", soft_wrap=True
        )
    console.print()
