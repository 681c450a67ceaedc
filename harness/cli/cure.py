"""`mla-harness cure SCENARIO --with PATCH`: does a proposed cure remove the cause of a failure, or hide it?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.run import Json, Scenarios, Seed, Timeout, Workers

if TYPE_CHECKING:
    from rich.console import Console

    from harness.cli.session import Wanted
    from harness.core.cases import Job
    from harness.core.records import CureResult, Reading
    from harness.run.runner import WorkerPool


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
    fault: Annotated[
        list[str] | None, typer.Option("--fault", metavar="NAME", help="The known bug to cure; may be repeated.")
    ] = None,
    kernel: Annotated[str | None, typer.Option("--kernel", help="Judge this kernel wherever its op is used.")] = None,
    plugin: Annotated[list[Path] | None, typer.Option("--plugin", help="A Python file with kernels of yours.")] = None,
    seed: Seed = 0,
    timeout: Timeout = 120.0,
    workers: Workers = None,
    scenarios: Scenarios = None,
    json: Json = False,
) -> None:
    """Tell whether a proposed cure removes the cause of a failure or hides it."""  # fmt: skip
    from harness.cli.session import Wanted
    from harness.cli.shrink import declared_oracle
    from harness.core.catalog import FAULTS
    from harness.core.cure_names import parse
    from harness.diagnose.cure import REMOVES, judge_cure
    from harness.report.terminal import console_for
    from harness.run.runner import WorkerPool

    cures = [parse(text) for text in patch]
    names = [FAULTS.get(name).name for name in fault or ()]
    wanted = Wanted(
        selectors=(selector,), device="cpu", kernel=kernel, plugins=tuple(path.resolve() for path in plugin or ()),
        seed=seed, timeout_seconds=timeout, scenarios=scenarios,
    )  # fmt: skip
    console = console_for(sys.stderr if json else sys.stdout)
    with WorkerPool(workers) as pool:
        job = _job(wanted, pool, selector, names)
        bugs = ", ".join((*((job.fault,) if job.fault else ()), *job.more_faults))
        console.print(job.case.id + (f" with {bugs}" if bugs else ""), style="bold", markup=False, soft_wrap=True)
        with console.status("filling one site after another, without and with the cure"):
            result = judge_cure(pool, job, cures, oracle=declared_oracle(wanted, job))
    _print(console, result)
    if json:
        sys.stdout.write(result.model_dump_json(indent=1) + "\n")
    raise typer.Exit(0 if result.verdict == REMOVES else 1)


def _job(wanted: Wanted, pool: WorkerPool, selector: str, faults: list[str]) -> Job:
    """The case to cure: the one that the scenario tries the fault on, or the first that is selected."""
    from harness.cli.session import load, make_jobs, plan_jobs
    from harness.cli.shrink import first_failure
    from harness.core.errors import InputError
    from harness.diagnose.cure import why_not
    from harness.scenario.expand import fault_cases
    from harness.scenario.selection import selects_scenario

    pairs = [
        (use, case)
        for scenario in load(wanted)
        if selects_scenario(selector, scenario)
        for use, case in fault_cases(scenario, seed=wanted.seed)
        if case.kind.shows_launches and (not faults or use.name == faults[0])
    ]
    own = [(use, case) for use, case in pairs if faults or _is_ref_of(selector, use.name)] or pairs
    if own and not wanted.kernel and not wanted.plugins:
        use, case = own[0]
        job = make_jobs([case], wanted, pool, fault=use.name)[0]
    elif faults:
        jobs = [planned for planned in plan_jobs(wanted, pool) if not why_not(planned)]
        if not jobs:
            raise InputError(f"{selector}: has no case of the engine or of a kernel, whose launches can be seen")
        job = jobs[0].model_copy(update={"fault": faults[0]})
    else:
        job, _ = first_failure(pool, plan_jobs(wanted, pool))
    return job.model_copy(update={"more_faults": tuple(faults[1:])})


def _is_ref_of(selector: str, fault: str) -> bool:
    from harness.core.catalog import FAULTS

    return FAULTS.get(fault).ref.rpartition("#")[2] == selector.rpartition("#")[2]


def _print(console: Console, result: CureResult) -> None:
    from harness.diagnose.cure import REMOVES
    from harness.report.wording import one_line

    console.print(f"symptom: `{result.oracle}` fires", markup=False)
    _print_readings(console, "read without the cure, although nobody wrote it:", result.before)
    _print_readings(console, f"read with {', '.join(result.cures)}:", result.after)
    console.print(
        f"compared {result.num_compared} live tensors at launches, with the cure, in {result.seconds:.1f} s",
        style="dim",
    )
    style = "bold green" if result.verdict == REMOVES else "bold red"
    console.print(f"{result.verdict}: ", style=style, end="")
    console.print(one_line(result.statement, 600), markup=False, soft_wrap=True)


def _print_readings(console: Console, title: str, readings: tuple[Reading, ...]) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from harness.report.wording import one_line

    console.print(title + ("" if readings else " nothing"), markup=False, soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    for reading in readings:
        place = ", ".join(part for part in (reading.tensor, reading.where) if part)
        cells = (reading.site, f"first by {reading.reader}" + (f" ({place})" if place else ""), reading.how)
        table.add_row(*(Text(one_line(cell, 160)) for cell in cells))
    if readings:
        console.print(Padding(table, (0, 0, 0, 2)))
