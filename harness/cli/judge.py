"""`mla-harness judge FILE`: judge the kernels of a file, which are trusted with nothing."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from harness.cli import run_and_report, shared_options
from harness.cli.asking import ask as ask_user
from harness.cli.asking import kernel_name
from harness.cli.option_records import LeavingRuns, with_options
from harness.cli.output import console, print_json
from harness.cli.run import code_of
from harness.cli.solutions import plugin_of
from harness.core.cases import CellOf, Job, MeasureSpeed
from harness.core.errors import InputError
from harness.core.ops import OPS, SPEED_FILE, ops_with
from harness.diagnose.run_jobs import MOST_CAUSES, MOST_FAILURES
from harness.report.console import say
from harness.report.progress import Waiting
from harness.report.run_view import RunView
from harness.report.terminal import print_run
from harness.report.wording import num
from harness.run.cell_server import CellServer
from harness.run.child import ONE_THREAD, ask
from harness.run.planning import JobPlanner, Wanted
from harness.run.runner import WorkerPool
from harness.scenario.calls_alone import scenarios_of_calls
from harness.store.run_folder import RunStore
from harness.store.summary import summarise


@dataclass(frozen=True, kw_only=True)
class JudgeOptions(LeavingRuns):
    """Options of `mla-harness judge`."""

    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE[:NAME]",
            help="A Python file with kernels, a function in it, or a Solution of FlashInfer-Bench.",
        ),
    ]
    selectors: shared_options.Selectors = None
    op: Annotated[
        str | None,
        typer.Option("--op", metavar="OP", help="The op of a function without a decorator."),
    ] = None
    style: Annotated[
        str | None,
        typer.Option(
            "--style", metavar="STYLE", help="The call of a function without a decorator."
        ),
    ] = None
    device: Annotated[
        str, typer.Option("--device", metavar="cpu|cuda", help="Where the kernel runs.")
    ] = "cpu"
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            metavar="N",
            min=1,
            max=2**31 - 1,
            help="Seed of the inputs [default: drawn, as the kernel must not know it].",
        ),
    ] = None
    timeout: shared_options.Timeout = 60.0
    workers: shared_options.Workers = None
    whole: Annotated[
        bool, typer.Option("--all", help="Add the cases of an engine, and all kernel cases.")
    ] = False
    speed: Annotated[
        bool,
        typer.Option("--speed", help="Time the kernel too: a ratio, beside the verdict."),
    ] = False
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Judge all cases, however many causes fail.")
    ] = False


@with_options(JudgeOptions)
def judge(context: typer.Context, given: JudgeOptions) -> None:
    """Judge the kernels of a file, which are trusted with nothing."""
    path, name = _file_and_name(given.file)
    words = _words(given, name)
    if path.suffix == ".json":
        path = plugin_of(path, given.root)
    elif not words:
        name, words = ask_user(path, name)
    screen = console(given.json)
    seed = given.seed or 1 + secrets.randbelow(2**31 - 1)
    with CellServer() as server, WorkerPool(given.workers) as pool:
        with Waiting(screen, run_and_report.PLANNING):
            scenarios_of_calls()  # read while the processes import torch
            server.wait_until_ready()
            where = CellOf(server=server.path, device=given.device, name=name, words=words)
            wanted = Wanted(
                selectors=tuple(given.selectors or ()),
                # The judge's own device. That of the kernel stands with its cell.
                device="cpu",
                plugins=(path,),
                seed=seed,
                timeout_seconds=given.timeout,
                cell=where,
            )
            jobs = _jobs(JobPlanner(wanted, pool), given)
            store = run_and_report.planned(given.root, wanted, jobs)
        store.note_source(run_and_report.source_under_test(given.commit, given.branch, (path,)))
        code = _finish(store, pool, given, screen, seed)
        if given.speed:
            _say_speed(screen, MeasureSpeed(cell=where, file=str(path)))
    raise typer.Exit(code)


def _say_speed(screen: Console, request: MeasureSpeed) -> None:
    """Say how long the calls take, as ratios to what was timed beside them."""
    with Waiting(screen, "measuring the speed"):
        answer = ask(
            "harness.judge.speed", request, name="judge: the measuring process", environ=ONE_THREAD
        )
    if not answer["rows"]:
        told = ", ".join(ops_with(SPEED_FILE))
        say(screen, f"speed: told of kernels of {told} alone")
    for row in answer["rows"]:
        say(screen, f"speed, no part of the verdict: {speed_words(row)}")


def speed_words(row: dict[str, Any]) -> str:
    """`mla_decode/mine, 4 requests of 512 keys: 812 us, 0.31 x the float64 reference`."""
    if "why_not" in row:
        return f"{row['kernel']}: {row['why_not']}"
    own = row["microseconds"]
    ratios = [f"{own / other:.2g} x {name}" for name, other in row["beside"].items() if other]
    return ", ".join(
        [
            row["kernel"],
            f"{num(row['requests'], 'request')} of {row['keys']:,} keys: {own:,.0f} us",
            *ratios,
        ]
    )


def _file_and_name(text: str) -> tuple[Path, str]:
    """The file, and the function after the colon; empty for the decorated ones."""
    file, colon, name = text.rpartition(":")
    if not colon or not name.replace(".", "").isidentifier():
        # What follows the colon is no name, so the colon belongs to the path.
        file = text
        name = ""
    path = Path(file).resolve()
    if not path.is_file():
        raise InputError(f"{file}: no such file; give the path of a Python file with kernels")
    return path, name


def _words(given: JudgeOptions, name: str) -> dict[str, Any]:
    """The op, the name and the style that the options give to a function without a decorator."""
    if given.op is None:
        if given.style:
            raise InputError(
                f"--style {given.style}: give --op too, or write style= in the decorator"
            )
        return {}
    if not name:
        raise InputError(f"--op {given.op}: name the function: {given.file}:NAME")
    OPS.get(given.op)
    words = {"op": given.op, "name": kernel_name(name)}
    return words | ({"style": given.style} if given.style else {})


def _jobs(planner: JobPlanner, given: JudgeOptions) -> list[Job]:
    if given.whole or given.selectors:
        return planner.jobs()
    own = planner.calls_alone()
    if not own:
        raise InputError(f"{given.file}: no case calls its kernels alone; add --all")
    return own


def _finish(
    store: RunStore, pool: WorkerPool, given: JudgeOptions, screen: Console, seed: int
) -> int:
    def work() -> None:
        run_and_report.work_on(
            store,
            pool,
            screen,
            keep_going=given.keep_going,
            most_causes=None if given.keep_going else MOST_CAUSES,
            max_failures=None if given.keep_going else MOST_FAILURES,
        )

    def report(view: RunView) -> int:
        print_run(screen, view)
        say(screen, f"seed {seed}: --seed {seed} draws the same inputs again")
        if given.json:
            print_json(summarise(store, view.coverages))
        return code_of(store, (), None, None, screen)

    return run_and_report.work_and_report(store, work, stop=pool.close, report=report)
