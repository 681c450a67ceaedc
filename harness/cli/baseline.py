"""`mla-harness baseline`: show the stored accuracies, or store a new one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from harness.accuracy.answer_log import FILE_NAME, AccuracyRun, read_run
from harness.accuracy.baselines import Baseline, plan_update, read_baselines, write_baseline
from harness.accuracy.judge import wilson_interval
from harness.cli.commands import Command, new_app
from harness.cli.output import console, print_json
from harness.cli.shared_options import Json, Out
from harness.core.errors import InputError
from harness.core.files import BASELINES
from harness.core.registry import nearest
from harness.report.console import table
from harness.store.run_folder import DEFAULT_RUNS, RunStore, find_run

app = new_app(help="Show stored accuracies, or store the accuracy of a run.")

Folder = Annotated[
    Path | None, typer.Option("--dir", metavar="DIR", help="Your own folder of baselines.")
]


@app.command("show", cls=Command)
def show(
    task: Annotated[
        str | None, typer.Argument(metavar="[TASK]", help="Only baselines of this task.")
    ] = None,
    folder: Folder = None,
    json: Json = False,
) -> None:
    """List the stored baselines."""
    known = read_baselines(folder or BASELINES)
    found = [baseline for baseline in known if task in (None, baseline.task)]
    if task is not None and known and not found:
        hint = nearest(task, sorted({b.task for b in known}), see="mla-harness baseline show")
        raise InputError(f"no baseline of task {task!r}; {hint}")
    if json:
        print_json(
            [baseline.model_dump(mode="json") | {"name": baseline.name} for baseline in found]
        )
    else:
        _print(found, folder or BASELINES)


def _print(found: list[Baseline], folder: Path) -> None:
    screen = console()
    if not found:
        screen.print(
            f"no baselines in {folder}; store one with: mla-harness baseline update RUN",
            soft_wrap=True,
        )
        return
    shown = table(
        "task",
        "model",
        "engine",
        "dtype",
        "accuracy",
        "interval",
        "questions",
        "recorded",
        "model hash",
    )
    for one in found:
        low, high = wilson_interval(len(one.right), one.num_questions)
        measured = (f"{one.accuracy:.4f}", f"{low:.4f} to {high:.4f}", f"{one.num_questions:,}")
        shown.add_row(
            one.task, one.model, one.engine, one.dtype, *measured, one.recorded, one.model_hash
        )
    screen.print(shown)


@app.command("update", cls=Command)
def update(
    name: Annotated[
        str, typer.Argument(metavar="RUN", help="A run directory, a run id, or 'latest'.")
    ],
    allow_regression: Annotated[
        bool, typer.Option("--allow-regression", help="Also write a lower accuracy.")
    ] = False,
    folder: Folder = None,
    out: Out = None,
) -> None:
    """Store the accuracy of a run's first epoch.

    Shows the difference to the old baseline before it writes the new one.
    """
    # All are planned before one is written: what cannot be read, or is not complete, changes no
    # file.
    changes = [
        plan_update(run, folder or BASELINES) for run in _measured(name, out or DEFAULT_RUNS)
    ]
    for change in changes:
        print("\n".join(change.lines()), flush=True)
    for change in changes:
        print(f"written: {write_baseline(change, allow_regression=allow_regression)}")


def _measured(name: str, root: Path) -> list[AccuracyRun]:
    """The clean measurements of a run: of `epochs` the one, of `run` one for each case that
    measured accuracy.
    """
    store = RunStore.open(find_run(name, root))
    folders = [store.path]
    for job in store.plan.jobs:
        directory = store.placed(job).directory
        if directory and not job.fault:
            folders.append(Path(directory))
    # A link to nothing counts as there: it is read, and the error names it.
    found = [read_run(folder) for folder in folders if os.path.lexists(folder / FILE_NAME)]
    if not found:
        raise InputError(
            f"{store.path}: measured no accuracy without a fault; measure one with `mla-harness"
            " epochs`"
        )
    return found
