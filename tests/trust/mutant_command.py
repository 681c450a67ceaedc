"""`mla-harness selftest --mutants N`: change the engine and its kernels in N small ways, and see which cases notice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from harness.cli import run_and_report, shared_options
from harness.cli.output import console, print_json
from harness.core.checkout import TRUST, on_path
from harness.core.errors import InputError
from harness.core.mutants import MutantResult, SurveyedCase, Trials
from harness.report.console import table
from harness.report.wording import one_line, printable
from harness.run.child import ONE_THREAD, Child
from harness.run.environment import num_usable_cores
from harness.run.planning import Planner, Wanted
from harness.run.pool import Pool
from harness.scenario.selection import select
from harness.store.mutants import score, tables
from harness.store.run_folder import RunStore
from harness.store.summary import summarise

MODULES = {False: "mutant_trials", True: "condition_trials"}
NAME = "the trials of mutants"


def planned_trials(
    wanted: Wanted, pool: Pool, count: int, *, out: Path, workers: int | None, conditions: bool
) -> RunStore:
    """A new run of `count` mutants drawn from the seed on the selected cases. Raises InputError for other cases.

    With `conditions` the kernels are wrong under pairs and triples of conditions, and no code changes.
    """
    wanted = replace(wanted, device="cpu")
    planner = Planner(wanted, pool)
    cases = select(planner.scenarios(), wanted.selectors, tags=wanted.tags, seed=0)
    jobs = [job for job in planner.jobs_of(cases) if job.case.kind.shows_launches and job.device == "cpu"]
    if not jobs:
        raise InputError("--mutants: changes the reference engine and the built-in kernels; select cases that run them")
    how = wanted.reproduction() | {"conditions" if conditions else "mutants": count}
    trials = Trials(
        jobs=tuple(jobs),
        count=count,
        seed=wanted.seed,
        workers=workers or min(num_usable_cores(), 4),
        conditions=conditions,
        proves=not wanted.selectors,
    )
    return RunStore.create(out, (), command=shared_options.command_line(), options=how, is_selftest=True, trials=trials)


def try_mutants(store: RunStore, trials: Trials, *, workers: int | None, as_json: bool) -> int:
    """Try the mutants of a run that are left. Returns the exit code: 0, or 3 without a score."""
    screen = console(as_json)
    unused: list[SurveyedCase] = []

    def work() -> None:
        done = tuple(result.name for result in store.mutants())
        request = trials.model_copy(update={"done": done, "workers": workers or trials.workers})
        live = screen.status(f"looking at {len(trials.jobs)} cases")
        with live as status, Child(MODULES[trials.conditions], name=NAME, environ=ONE_THREAD | on_path(TRUST)) as child:
            child.send(request)
            while (reply := child.answer()).result is None:
                found = reply.progress or {}
                unused.extend(SurveyedCase.model_validate(case) for case in found.get("unused", ()))
                if "mutant" in found:
                    store.add_mutant(MutantResult.model_validate(found["mutant"]))
                    status.update(score(store.mutants()).statement)

    def report() -> int:
        results = store.mutants()
        _print(screen, results, unused)
        screen.print(f"report: {store.path / 'report.html'}", soft_wrap=True)
        if as_json:
            print_json(summarise(store))
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
        screen.print(f"not used: {printable(case.id)}: {one_line(case.why_not, 200)}", soft_wrap=True)
    screen.print(score(results).statement, soft_wrap=True)
