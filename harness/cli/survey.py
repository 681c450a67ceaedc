"""`mla-harness survey ENGINE`: options that users switch on, in pairs and threes; which of them
lose answers.
"""

from __future__ import annotations

import json as jsonlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from harness.cli import run_and_report, shared_options
from harness.cli.option_records import LeavingRuns, with_options
from harness.cli.output import console, print_json
from harness.core.cases import Case
from harness.core.catalog import ENGINES
from harness.core.errors import InputError
from harness.core.files import write_atomic
from harness.core.records import CaseResult, OptionSet, Verdict
from harness.core.registry import attribute_at, nearest
from harness.diagnose.run_jobs import exit_code, run_jobs
from harness.diagnose.smallest_options import is_failure, smallest_sets
from harness.report.console import table
from harness.report.progress import LiveProgress, Waiting
from harness.report.run_view import RunView, skip_reasons
from harness.report.terminal import print_run
from harness.report.wording import printable
from harness.run.planning import JobPlanner, Wanted
from harness.run.pool import JobPool
from harness.scenario.variant import shown
from harness.store.run_folder import RunStore

SETS = "survey.json"
"""The smallest sets of options that fail, each with its command."""
MOST = 300
"""Characters of a finding or a refusal in the terminal."""


@dataclass(frozen=True, kw_only=True)
class SurveyOptions(LeavingRuns):
    """Options of `mla-harness survey`."""

    engine: Annotated[
        str | None,
        typer.Argument(
            metavar="ENGINE", help="An engine with a scenario ENGINE-survey [default: vllm]."
        ),
    ] = None
    batch_invariant: Annotated[
        bool,
        typer.Option(
            "--batch-invariant",
            help="The engine's batch-invariant mode: scripts that allow 0 bits.",
        ),
    ] = False
    seconds: Annotated[float, shared_options.seconds("Time for the smallest sets of options.")] = (
        600.0
    )
    resume: shared_options.Resume = None
    workers: shared_options.Workers = None
    per_gpu: shared_options.PerGpu = 1
    scenarios: shared_options.Scenarios = None


@with_options(SurveyOptions)
def survey(context: typer.Context, given: SurveyOptions) -> None:
    """Try options of an engine together, as released, and find which lose answers."""
    engine = given.engine
    screen = console(given.json)
    if engine is not None and engine not in ENGINES:
        raise InputError(f"survey {engine}: unknown engine; {nearest(engine, ENGINES.names())}")
    scenario = f"{engine or 'vllm'}-{'batch-invariant' if given.batch_invariant else 'survey'}"
    if store := run_and_report.to_resume(context, given.resume, given.out, "run"):
        planned = {job.case.scenario for job in store.plan.jobs}
        if engine is not None and not planned <= {scenario, f"{scenario}-ranks"}:
            raise InputError(
                f"--resume: the run is of {', '.join(sorted(planned))}; leave out {engine}"
            )
    found: list[OptionSet] = []
    with run_and_report.pool_for(shared_options.LOCAL, None, given.workers, given.per_gpu) as pool:
        if store is None:
            with Waiting(screen, run_and_report.PLANNING):
                # With several GPUs also the scenario ENGINE-survey-ranks, whose combinations need
                # them.
                several = "*" if len(pool.start().gpus) > 1 else ""
                wanted = Wanted(
                    (scenario + several,),
                    ("nightly",),
                    timeout_seconds=600.0,
                    scenarios=given.scenarios,
                )
                store = run_and_report.planned(given.root, wanted, JobPlanner(wanted, pool).jobs())
        store.note_source(run_and_report.source_under_test(given.commit, given.branch))

        def work() -> None:
            with LiveProgress(screen, len(store.unfinished())) as live:
                run_jobs(store, pool, live)
            with Waiting(screen, "looking for the smallest sets of options", pool):
                found.extend(_sets(store, pool, given.seconds))

        report = partial(_report, screen, found, as_json=given.json)
        code = run_and_report.work_and_report(store, work, stop=pool.close, report=report)
    raise typer.Exit(code)


def _report(screen: Console, found: list[OptionSet], view: RunView, *, as_json: bool) -> int:
    """Print the run and the smallest sets, and write them into the run folder.

    Returns the exit code.
    """
    store = view.store
    print_run(screen, view)
    screen.print(sets_table(store.results(), found))
    sets = [to_object(one) for one in found]
    write_atomic(store.path / SETS, jsonlib.dumps(sets, indent=1) + "\n")
    if as_json:
        print_json(sets)
    return (
        2
        if run_and_report.is_all_skipped([one.verdict for one in store.results()])
        else exit_code(store.results())
    )


def _sets(store: RunStore, pool: JobPool, seconds: float) -> list[OptionSet]:
    """The sets of options that explain the failures.

    The first planned combination has the plain values.
    """
    jobs = store.jobs_by_key()
    failures = [
        (store.placed(jobs[result.key]), result) for result in store.results() if is_failure(result)
    ]
    right = [
        jobs[result.key].case.params for result in store.results() if result.verdict is Verdict.PASS
    ]
    return smallest_sets(
        pool, failures, next(iter(jobs.values())).case.params, seconds=seconds, right=right
    )


def sets_table(results: Sequence[CaseResult], found: Sequence[OptionSet]) -> Table:
    """The sets of options that fail, each with its command, and why others were skipped (the engine
    refuses some).
    """
    made = table("combinations", "verdict", "options", "what was seen")
    for one in found:
        seen = one.result.findings[0].message if one.result.findings else one.result.reason
        made.add_row(
            str(len(one.keys)), one.result.verdict.value, words_of(one), printable(seen)[:MOST]
        )
        made.add_row("", "", "", command_of(one.case))
    for reason, count in skip_reasons(results).most_common():
        made.add_row(str(count), "skipped", "", printable(reason)[:MOST])
    return made


def words_of(one: OptionSet) -> str:
    """`backend=TRITON_MLA graph=default`: the options that fail together."""
    text = (
        " ".join(f"{name}={shown(value)}" for name, value in one.options.items()) or "plain options"
    )
    return text if one.is_smallest else f"{text} (perhaps fewer: the time was up)"


def command_of(case: Case) -> str:
    """The shell command that starts the engine with the options of `case`; empty if the engine has
    none.
    """
    path = case.kind.serve_command
    return str(attribute_at(path)(case)) if path else ""


def to_object(one: OptionSet) -> dict[str, Any]:
    return {
        "options": one.options,
        "verdict": one.result.verdict.value,
        "case": one.case.id,
        "combinations": one.keys,
        "trials": one.num_trials,
        "is_smallest": one.is_smallest,
        "command": command_of(one.case),
    }
