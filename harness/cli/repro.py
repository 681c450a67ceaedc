"""`mla-harness repro PR`: the scenarios of one upstream reference, without and with its faults,
side by side.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.cli.export import MAX_SHRINK_SECONDS, export_script
from harness.cli.option_records import RunningCases, with_options
from harness.cli.output import console, print_json
from harness.cli.run_and_report import NOTHING_RAN
from harness.cli.shared_options import EnginePath, Plugins
from harness.cli.shrink import TRYING
from harness.core.cases import Case, Job
from harness.core.catalog import FAULTS
from harness.core.errors import InputError
from harness.core.records import Blame, CaseResult, FaultResult, Shrunk, Verdict
from harness.diagnose.blame import find_blame
from harness.diagnose.run_jobs import exit_code, judge_fault
from harness.diagnose.session import comes_from, declared_oracle, why_not_recorded, with_first_nan
from harness.diagnose.shrink import shrink, why_not
from harness.report.causes import facts
from harness.report.console import say, table
from harness.report.progress import Waiting
from harness.report.run_view import refusals, skip_reasons
from harness.report.terminal import (
    fault_line,
    finding_line,
    print_shrunk,
    print_skips,
    verdict_text,
)
from harness.report.wording import blamed, first_nan_lines, num, one_line, printable, reproduce_case
from harness.run.planning import JobPlanner, Wanted, load
from harness.run.pool import JobPool
from harness.run.runner import WorkerPool
from harness.scenario.expand import NIGHTLY, fault_cases
from harness.scenario.schema import FaultUse, Scenario
from harness.scenario.selection import as_reference, select, selects_scenario, unknown_reference
from harness.store.summary import totals

NOT_JUDGED = Text("not judged: the case that the scenario tries it on was skipped", style="dim")
MAX_CASES = 16
"""Cases shown of a scenario: more cases of a large matrix show nothing new."""


@dataclass(frozen=True, kw_only=True)
class ReproOptions(RunningCases):
    """Options of `mla-harness repro`."""

    reference: Annotated[
        str,
        typer.Argument(
            metavar="PR", help="36540, OWNER/NAME#36540 or its address; else a case id."
        ),
    ]
    script: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Export a failing case as a standalone script."),
    ] = None
    as_test: Annotated[
        bool, typer.Option("--pytest", help="Write the script as a pytest test.")
    ] = False
    fault: Annotated[
        str | None, typer.Option(metavar="NAME", help="Bug that the script shows.")
    ] = None
    kernel: Annotated[
        str | None, typer.Option(metavar="NAME", help="Kernel that the script tests.")
    ] = None
    plugin: Plugins = None
    engine_path: EnginePath = None
    shrink_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", min=0.0, help="Time for shrinking a case [default: at most 20]."
        ),
    ] = None


@with_options(ReproOptions)
def repro(context: typer.Context, given: ReproOptions) -> None:
    """Show an upstream bug, without and with it; or export a failing case."""
    screen = console(given.json)
    reference = as_reference(given.reference)
    wanted = given.wanted(engine_path=given.engine_path)
    if given.script is not None:
        kernels = (given.kernel,) if given.kernel else ()
        plugins = tuple(given.plugin or ())
        wanted = replace(
            wanted, selectors=(reference,), kernels=kernels, plugins=plugins, fault=given.fault
        )
        with WorkerPool(given.workers) as pool:
            export_script(
                wanted,
                pool,
                screen,
                given.script,
                is_pytest=given.as_test,
                seconds=given.shrink_seconds,
            )
        raise typer.Exit(0)
    if given.as_test or given.fault or given.kernel or given.plugin:
        raise InputError(
            "--pytest, --fault, --kernel and --plugin are about a script; add --script FILE"
        )
    chosen = _scenarios_of(reference, load(wanted))
    seconds = MAX_SHRINK_SECONDS if given.shrink_seconds is None else given.shrink_seconds
    with WorkerPool(given.workers) as pool:
        shown = _Reproduction(screen, pool, wanted, reference, seconds)
        codes = [shown.show(scenario) for scenario in chosen]
    # A scenario that was skipped as a whole decides the code only if all of them were.
    code = next((worst for worst in (1, 3, 0) if worst in codes), 2)
    if given.json:
        print_json({"ok": code == 0, "scenarios": shown.cases, "faults": shown.faults})
    if code == 2:
        print(NOTHING_RAN, file=sys.stderr)
    raise typer.Exit(code)


def _scenarios_of(reference: str, known: list[Scenario]) -> list[Scenario]:
    is_reference = "#" in reference or reference.isdigit()
    chosen = [
        scenario for scenario in known if is_reference and selects_scenario(reference, scenario)
    ]
    if chosen:
        # Nightly scenarios take hours, so they are shown only if no other one is of this reference.
        return [scenario for scenario in chosen if NIGHTLY not in scenario.tags] or chosen
    if reference.partition("[")[0] in (scenario.name for scenario in known):
        what = "case" if "[" in reference else "scenario"
        again = shlex.join(["mla-harness", "run", reference])
        raise InputError(
            f"{reference!r} is a {what}, which repro takes only with --script FILE, and an upstream"
            f" reference without; run it with: {again}"
        )
    raise unknown_reference(reference, known)


def _faults_of(reference: str, scenario: Scenario) -> list[str]:
    """The scenario's faults that come from `reference`, or all of them if none does."""
    names = list(dict.fromkeys(use.name for use in scenario.faults))
    return [name for name in names if comes_from(reference, name)] or names


@dataclass(slots=True)
class _Reproduction:
    """Runs and prints scenarios one after another, and collects what `--json` prints at the end."""

    screen: Console
    pool: JobPool
    wanted: Wanted
    reference: str
    shrink_seconds: float
    cases: list[dict[str, Any]] = field(default_factory=list)
    faults: list[dict[str, Any]] = field(default_factory=list)

    def show(self, scenario: Scenario) -> int:
        """Run and print one scenario; returns 0 when it is clean and each fault is caught, 2 when
        nothing of it ran.
        """
        faults = _faults_of(self.reference, scenario)
        declared = [
            pair for pair in fault_cases(scenario, seed=self.wanted.seed) if pair[0].name in faults
        ]
        clean_cases = select([scenario], seed=self.wanted.seed)
        by_id = {case.id: case for case in [*(case for _, case in declared), *clean_cases]}
        # The cases of declared faults come first, and none of them may be cut off.
        cases = list(by_id.values())[: max(MAX_CASES, len(declared))]
        jobs, results, blames = self._run(cases, faults)

        clean = [results[case.id] for case in cases]
        is_skipped = all(result.verdict is Verdict.SKIP for result in results.values())
        if not is_skipped:
            _print_title(self.screen, scenario)
        judged = _judged(declared, results, blames)
        smallest: dict[str, Shrunk] = {}
        for spec in () if is_skipped else map(FAULTS.get, faults):
            fault = spec.name
            self.screen.print(f"\nfault {fault} ({spec.ref}): {spec.summary}", soft_wrap=True)
            by_case = [(results[case.id], results[f"{case.id}!{fault}"]) for case in cases]
            self.screen.print(_side_by_side(by_case, blames))
            _print_example(self.screen, [faulty for _, faulty in by_case], blames)
            smallest |= self._print_smallest(
                [(job, results[job.key]) for job in jobs if job.fault == fault], blames
            )
            own = [fault_line(found) for found in judged if found.fault == fault]
            self.screen.print(*own or [NOT_JUDGED], sep="\n", soft_wrap=True)
        self.cases += [
            _as_object(j, results[j.key], blames.get(j.key), smallest.get(j.key)) for j in jobs
        ]
        self.faults += [found.model_dump(mode="json") for found in judged]
        if is_skipped:
            print_skips(self.screen, skip_reasons(clean), scenario.name)
            print_skips(self.screen, refusals(clean), scenario.name, word="refused")
            return 2
        if not faults:
            verdicts = ", ".join(
                f"{count} {name}" for name, count in totals(clean).items() if count
            )
            self.screen.print(
                f"\nno fault of its own; {num(len(clean), 'case')} as they are: {verdicts}"
            )
        self._print_commands(cases[0].id, faults)
        return exit_code(
            clean, judged, [results[f"{case.id}!{use.name}"] for use, case in declared]
        )

    def _run(
        self, cases: list[Case], faults: list[str]
    ) -> tuple[list[Job], dict[str, CaseResult], dict[str, Blame]]:
        """Run each case as it is and with each fault; returns the jobs, and their results and
        blames by key.
        """
        planner = JobPlanner(self.wanted, self.pool)
        jobs = [job for fault in (None, *faults) for job in planner.jobs_of(cases, fault)]
        what = (
            f"running {num(len(jobs), 'case')} of {cases[0].scenario}, and looking for the memory"
            " to blame"
        )
        with Waiting(self.screen, what, self.pool):
            results = dict(
                zip([job.key for job in jobs], self.pool.run_in_order(jobs), strict=True)
            )
            failing = [(job, results[job.key]) for job in jobs if results[job.key].findings]
            blames = {key: blame for key, (blame, _) in find_blame(self.pool, failing).items()}
            # Of equal keys the last stays, so the first failing job of each fault does.
            first = {job.fault: job for job, _ in reversed(failing)}
            shown = [
                job
                for job in reversed(first.values())
                if job.key in blames and not why_not_recorded(job)
            ]
            blames |= with_first_nan(self.pool, shown, blames)
        return jobs, results, blames

    def _print_smallest(
        self, tried: list[tuple[Job, CaseResult]], blames: dict[str, Blame]
    ) -> dict[str, Shrunk]:
        """Shrink the first case that fails with a fault, and print the steps, unless a trial would
        take minutes.
        """
        failing = next(((job, result) for job, result in tried if result.findings), None)
        if failing is None or why_not(failing[0]) or not self.shrink_seconds:
            return {}
        job, result = failing
        blame = blames.get(job.key)
        oracle = declared_oracle(self.wanted, job, result)
        with Waiting(self.screen, TRYING, self.pool):
            shrunk = shrink(
                self.pool, job, result, blame=blame, oracle=oracle, seconds=self.shrink_seconds
            )
        self.screen.print("smaller, for the same reason:")
        print_shrunk(
            self.screen,
            shrunk,
            reproduce_case(shrunk.case.id, shrunk.fault, self.wanted.reproduction()),
        )
        return {job.key: shrunk}

    def _print_commands(self, case_id: str, faults: list[str]) -> None:
        shown = shlex.join(["mla-harness", "show", case_id])
        self.screen.print(f"\nsee one case in full: {shown}", soft_wrap=True)
        for fault in faults:
            command = reproduce_case(case_id, fault, self.wanted.reproduction())
            self.screen.print(f"run it with the bug: {command}", soft_wrap=True)
        self.screen.print()


def _judged(
    declared: list[tuple[FaultUse, Case]], results: dict[str, CaseResult], blames: dict[str, Blame]
) -> list[FaultResult]:
    """Judge each declared fault on its case; skipped ones are left out."""
    tried = [(use, results[f"{case.id}!{use.name}"]) for use, case in declared]
    ran = [(use, result) for use, result in tried if result.verdict is not Verdict.SKIP]
    return [
        judge_fault(use, result, blames.get(result.key, Blame()), 0.0, results[result.id])
        for use, result in ran
    ]


def _print_title(screen: Console, scenario: Scenario) -> None:
    screen.print(f"{scenario.name}: {one_line(scenario.summary)}", style="bold", soft_wrap=True)
    screen.print(", ".join(scenario.refs), style="dim", soft_wrap=True)
    if scenario.why:
        say(screen, " ".join(scenario.why.split()))


def _side_by_side(pairs: list[tuple[CaseResult, CaseResult]], blames: dict[str, Blame]) -> Table:
    """A row for the cases that end alike, with the first of them."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for clean, faulty in pairs:
        blame = blames.get(faulty.key)
        oracles = dict.fromkeys(finding.oracle for finding in faulty.findings)
        blamed = (", ".join(blame.sites) or "no site") if blame else ""
        outcome = (
            clean.verdict.value,
            faulty.verdict.value,
            ", ".join(oracles) or faulty.reason,
            blamed,
        )
        alike.setdefault(outcome, []).append(clean.id)
    shown = table(
        "cases", "without", "with", "found by", "blame", "first case", no_wrap={"without", "with"}
    )
    for (without, faulty_verdict, found_by, blamed), cases in alike.items():
        verdicts = (verdict_text(without), verdict_text(faulty_verdict))
        shown.add_row(
            str(len(cases)),
            *verdicts,
            printable(found_by),
            Text(blamed, style="bold"),
            printable(cases[0]),
        )
    return shown


def _print_example(screen: Console, results: list[CaseResult], blames: dict[str, Blame]) -> None:
    """Print what each oracle found in the first failing case, and the reason for its blame."""
    result = next((result for result in results if result.findings), None)
    if result is None and all(result.verdict is Verdict.SKIP for result in results):
        return
    if result is None:
        screen.print("no case fails with this fault: it is not caught", style="bold red")
        return
    screen.print(printable(f"in {result.id}:"), soft_wrap=True)
    for finding, _ in facts(result.findings):
        say(screen, finding_line(finding), indent="  ")
    if blame := blames.get(result.key):
        for line in (f"blame: {blamed(blame)}", *first_nan_lines(blame)):
            say(screen, line, indent="  ")


def _as_object(
    job: Job, result: CaseResult, blame: Blame | None, smallest: Shrunk | None
) -> dict[str, Any]:
    return {
        "case": job.case.id,
        "fault": job.fault,
        **result.model_dump(mode="json", include={"verdict", "reason", "findings"}),
        "blame": blame.model_dump(mode="json") if blame else None,
        "smallest": smallest.model_dump(mode="json") if smallest else None,
    }
