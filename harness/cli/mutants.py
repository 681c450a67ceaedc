"""`mla-harness selftest --mutants N`: change the engine and its kernels in N small ways, and see which cases notice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.cli import making_runs, options
from harness.cli.output import console, print_json
from harness.core.errors import InputError
from harness.core.mutants import Trials
from harness.report.terminal import LiveMutants, print_mutants
from harness.run.environment import num_usable_cores
from harness.run.mutants import MutantTrials
from harness.run.planning import Planner, Wanted
from harness.run.pool import Pool
from harness.scenario.selection import select
from harness.store.run_folder import RunStore
from harness.store.summary import summarise

SYSTEMS = ("kernel", "engine")


def try_mutants(
    wanted: Wanted, pool: Pool, count: int, *, out: Path, workers: int | None, as_json: bool, history: Path | None
) -> int:
    """Try `count` mutants drawn from the seed on the selected cases. Returns the exit code: 0, or 3 without a score."""
    wanted = replace(wanted, device="cpu")
    planner = Planner(wanted, pool)
    cases = select(planner.scenarios(), wanted.selectors, tags=wanted.tags, seed=0)
    jobs = [job for job in planner.jobs_of(cases) if job.case.system in SYSTEMS and job.device == "cpu"]
    if not jobs:
        raise InputError("--mutants: changes the reference engine and the built-in kernels; select cases that run them")
    store = RunStore.create(
        out, (), command=options.command_line(), options=wanted.reproduction() | {"mutants": count}, is_selftest=True
    )
    store.note_source(making_runs.source_under_test())
    trials = MutantTrials(
        Trials(jobs=tuple(jobs), count=count, seed=wanted.seed, workers=workers or min(num_usable_cores(), 4))
    )
    screen = console(as_json)

    def work() -> None:
        done = []
        with LiveMutants(screen, count, len(jobs)) as live:
            for result in trials.results():
                store.add_mutant(result)
                done.append(result)
                live.on_result(done)

    def tell() -> int:
        results = store.mutants()
        print_mutants(screen, results, [case for case in trials.cases if case.why_not])
        screen.print(f"report: {store.path / 'report.html'}", soft_wrap=True)
        if as_json:
            print_json(summarise(store.plan, [], [], results))
        return 0 if results else 3

    return making_runs.perform(store, work, stop=trials.close, tell=tell, history=history)
