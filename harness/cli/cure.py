"""`mla-harness cure SCENARIO --with PATCH`: does a proposed cure remove the cause of a failure or hide it?"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.cli.options import Json, Kernel, Plugins, Scenarios, Seed, Timeout, Workers
from harness.cli.output import console, print_json
from harness.core.cases import Job
from harness.core.catalog import FAULTS
from harness.core.cure_names import parse
from harness.core.errors import InputError
from harness.core.records import CureResult, Reading
from harness.diagnose.cure import REMOVES, judge_cure, why_not
from harness.diagnose.session import comes_from, declared_oracle, first_failure
from harness.report.wording import one_line
from harness.run.planning import Planner, Wanted
from harness.run.runner import WorkerPool
from harness.scenario.expand import fault_cases
from harness.scenario.selection import selects_scenario


def cure(
    selector: Annotated[str, typer.Argument(metavar="SCENARIO", help="A scenario, a case id, or a PR number.")],
    patch: Annotated[
        list[str],
        typer.Option(
            "--with",
            metavar="PATCH",
            help="zero:SITE, nan_to_num:OP.OUTPUT, nan_to_num:logits, fix:FAULT or a Python file; may be repeated.",
        ),
    ],
    fault: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Known bug to cure; may be repeated.")] = None,
    kernel: Kernel = None,
    plugin: Plugins = None,
    seed: Seed = 0,
    timeout: Timeout = 120.0,
    workers: Workers = None,
    scenarios: Scenarios = None,
    json: Json = False,
) -> None:
    """Check whether a fix removes the cause of a failure or only hides it."""
    cures = [parse(text) for text in patch]
    names = [FAULTS.get(name).name for name in fault or ()]
    kernels = (kernel,) if kernel else ()
    wanted = Wanted((selector,), (), "cpu", kernels, tuple(plugin or ()), None, seed, timeout, scenarios)
    screen = console(json)
    with WorkerPool(workers) as pool:
        job = _job(Planner(wanted, pool), pool, selector, names)
        bugs = ", ".join(job.faults)
        screen.print(job.case.id + (f" with {bugs}" if bugs else ""), style="bold", markup=False, soft_wrap=True)
        with screen.status("filling one site after another, without and with the cure"):
            result = judge_cure(pool, job, cures, oracle=declared_oracle(wanted, job))
    _print(screen, result)
    if json:
        print_json(result.model_dump(mode="json"))
    raise typer.Exit(0 if result.verdict == REMOVES else 1)


def _job(planner: Planner, pool: WorkerPool, selector: str, faults: list[str]) -> Job:
    """The case to cure: the case that the scenario declares for the fault, or the first selected case."""
    wanted = planner.wanted
    pairs = [
        (use, case)
        for scenario in planner.scenarios()
        if selects_scenario(selector, scenario)
        for use, case in fault_cases(scenario, seed=wanted.seed)
        if case.kind.shows_launches and (not faults or use.name == faults[0])
    ]
    own = [(use, case) for use, case in pairs if faults or comes_from(selector, use.name)] or pairs
    if own and not wanted.kernels and not wanted.plugins:
        use, case = own[0]
        job = planner.job_of(case, use.name)
    elif faults:
        jobs = [planned for planned in planner.jobs() if not why_not(planned)]
        if not jobs:
            raise InputError(f"{selector}: has no case of the engine or of a kernel, so no launches can be seen")
        job = jobs[0].model_copy(update={"fault": faults[0]})
    else:
        job, _ = first_failure(pool, planner.jobs())
    return job.model_copy(update={"more_faults": tuple(faults[1:])})


def _print(screen: Console, result: CureResult) -> None:
    screen.print(f"symptom: `{result.oracle}` fires", markup=False)
    _print_readings(screen, "uninitialised memory that is read without the cure:", result.before)
    _print_readings(screen, f"read with {', '.join(result.cures)}:", result.after)
    screen.print(
        f"compared {result.num_compared} live tensors at launches, with the cure, in {result.seconds:.1f} s",
        style="dim",
    )
    style = "bold green" if result.verdict == REMOVES else "bold red"
    screen.print(f"{result.verdict}: ", style=style, end="")
    screen.print(one_line(result.statement, 600), markup=False, soft_wrap=True)


def _print_readings(screen: Console, title: str, readings: tuple[Reading, ...]) -> None:
    screen.print(title + ("" if readings else " nothing"), markup=False, soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    for reading in readings:
        place = ", ".join(part for part in (reading.tensor, reading.where) if part)
        cells = (reading.site, f"first by {reading.reader}" + (f" ({place})" if place else ""), reading.how)
        table.add_row(*(Text(one_line(cell, 160)) for cell in cells))
    if readings:
        screen.print(Padding(table, (0, 0, 0, 2)))
