"""`python -m trust.mutants --changes N`: change the engine and its kernels in N small ways, and see
which cases notice. In a checkout it is a command too, `mla-harness mutants`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from harness.cli import run_and_report, shared_options
from harness.cli.option_records import MakingRuns, with_options
from harness.cli.output import console, print_json
from harness.core.checkout import ROOT, on_path
from harness.core.errors import InputError
from harness.report.console import table
from harness.report.progress import Waiting
from harness.report.run_view import RunView
from harness.report.wording import one_line, printable
from harness.run.child import ONE_THREAD, Child
from harness.run.environment import num_usable_cores
from harness.run.planning import JobPlanner, Wanted
from harness.run.pool import JobPool
from harness.scenario.selection import select
from harness.store.run_folder import RunStore
from harness.store.summary import summarise
from trust.mutants.records import (
    MutantResult,
    SurveyedCase,
    Trials,
    add_mutant,
    mutants_of,
    score,
    tables,
)

MODULES = {False: "trust.mutants.trials", True: "trust.arrays.condition_trials"}
NAME = "the trials of mutants"


@dataclass(frozen=True, kw_only=True)
class MutantOptions(MakingRuns):
    """Options of `mla-harness mutants`."""

    changes: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Change the engine's code in N small ways."),
    ] = None
    conditions: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Make kernels wrong under N pairs and triples of conditions instead.",
        ),
    ] = None
    judged: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --conditions: a right kernel of this file, in the calls of `judge`.",
        ),
    ] = None


@with_options(MutantOptions)
def mutants(context: typer.Context, given: MutantOptions) -> None:
    """Change the harness's own code in small ways, and see which cases notice."""
    store = run_and_report.to_resume(context, given.resume, given.out, "mutants")
    counts = [count for count in (given.changes, given.conditions) if count is not None]
    if store is None and len(counts) != 1:
        raise InputError("mutants: say how many: --changes N or --conditions N, one of the two")
    if given.judged is not None and given.conditions is None:
        raise InputError(f"--judged {given.judged}: give --conditions N too")
    with run_and_report.pool_for(
        given.executor, given.ray_address, given.workers, given.per_gpu
    ) as pool:
        with Waiting(console(given.json), run_and_report.PLANNING):
            store = store or planned_trials(
                given.wanted(plugins=(given.judged.resolve(),) if given.judged else ()),
                pool,
                counts[0],
                out=given.root,
                workers=given.workers,
                conditions=given.conditions is not None,
            )
        store.note_source(run_and_report.source_under_test(given.commit, given.branch))
        raise typer.Exit(try_mutants(store, workers=given.workers, as_json=given.json))


def planned_trials(
    wanted: Wanted, pool: JobPool, count: int, *, out: Path, workers: int | None, conditions: bool
) -> RunStore:
    """A new run of `count` mutants drawn from the seed on the selected cases.

    Raises InputError for other cases.

    With `conditions` the kernels are wrong under pairs and triples of conditions, and no code
    changes. With a file of kernels in `wanted` they are these, in the calls of `judge`.
    """
    wanted = replace(wanted, device="cpu")
    planner = JobPlanner(wanted, pool)
    if wanted.plugins:
        jobs = planner.calls_alone()
    else:
        cases = select(planner.scenarios(), wanted.selectors, tags=wanted.tags, seed=0)
        jobs = planner.jobs_of(cases)
    jobs = [job for job in jobs if job.case.kind.shows_launches and job.device == "cpu"]
    if not jobs:
        raise InputError(
            "mutants: changes the reference engine and the built-in kernels; select cases that run"
            " them"
        )
    how = wanted.reproduction() | {"conditions" if conditions else "mutants": count}
    trials = Trials(
        jobs=tuple(jobs),
        count=count,
        seed=wanted.seed,
        workers=workers or num_usable_cores(),
        conditions=conditions,
        proves=not wanted.selectors,
    )
    return RunStore.create(
        out,
        (),
        command=shared_options.command_line(),
        options=how,
        is_selftest=True,
        trials=trials.model_dump(mode="json"),
    )


def try_mutants(store: RunStore, *, workers: int | None, as_json: bool) -> int:
    """Try the mutants of a run that are left. Returns the exit code: 0, or 3 without a score."""
    screen, trials = console(as_json), Trials.model_validate(store.plan.trials)
    unused: list[SurveyedCase] = []

    def work() -> None:
        done = tuple(result.name for result in mutants_of(store))
        request = trials.model_copy(update={"done": done, "workers": workers or trials.workers})
        live = Waiting(screen, f"looking at {len(trials.jobs)} cases")
        with (
            live,
            Child(
                MODULES[trials.conditions], name=NAME, environ=ONE_THREAD | on_path(ROOT)
            ) as child,
        ):
            child.send(request)
            while (reply := child.answer()).result is None:
                found = reply.progress or {}
                unused.extend(SurveyedCase.model_validate(case) for case in found.get("unused", ()))
                if "mutant" in found:
                    add_mutant(store, MutantResult.model_validate(found["mutant"]))
                    live.update(score(mutants_of(store)).statement)

    def report(view: RunView) -> int:
        results = mutants_of(store)
        _print(screen, results, unused)
        screen.print(f"report: {store.path / 'report.html'}", soft_wrap=True)
        if as_json:
            found, every = (
                score(results),
                [one.model_dump(mode="json", exclude={"schema_version"}) for one in results],
            )
            shown = {
                "rate": found.rate,
                "interval": found.interval,
                "statement": found.statement,
                "mutants": every,
            }
            print_json(summarise(store, view.coverages) | {"mutants": shown})
        return 0 if results else 3

    return run_and_report.work_and_report(store, work, stop=lambda: None, report=report)


def _print(screen: Console, results: list[MutantResult], unused: list[SurveyedCase]) -> None:
    """Print the tables of mutants, the cases that could not judge any, and the score."""
    for head, rows in tables(results):
        shown = table(*head)
        for row in rows:
            shown.add_row(*map(printable, row))
        screen.print(shown)
    for case in unused:
        screen.print(
            f"not used: {printable(case.id)}: {one_line(case.why_not, 200)}", soft_wrap=True
        )
    screen.print(score(results).statement, soft_wrap=True)
