"""`mla-harness compare`: compare two runs, new failures first."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.output import console, print_json, warn
from harness.cli.run_and_report import past_runs
from harness.cli.shared_options import History, Json, Out
from harness.core import unreadable
from harness.core.errors import InputError
from harness.report.run_view import RunView
from harness.report.terminal_history import print_comparison
from harness.store.history.compare import LATEST, Change, choose
from harness.store.history.compare import compare as compare_runs
from harness.store.history.entry import PastRuns, RunEntry
from harness.store.run_folder import DEFAULT_RUNS, RunStore


def compare(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN [RUN]]",
            help="The older run, then the newer: id, folder, latest or previous.",
        ),
    ] = None,
    branch: Annotated[
        str, typer.Option(metavar="NAME", help="Take 'previous' from this branch.")
    ] = "",
    history: History = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Compare two runs; exit code 1 if something fails that did not fail before, or no longer
    runs.
    """
    if names and len(names) > 2:
        raise InputError(f"compare: takes two runs, the older first, not {len(names)}")
    runs = past_runs(history, out) or PastRuns(out or DEFAULT_RUNS)
    before, after = choose(names or [], runs, branch=branch)
    if (not names or names[-1] == LATEST) and runs.names and runs.names[0] > after.run_id:
        warn(
            f"{runs.names[0]} is newer than {after.run_id}, but nothing ran in it; to compare it,"
            " name it"
        )
    for reason in runs.damaged:
        unreadable.note(reason)
    found = compare_runs(before, after)
    if json:
        shown = {field.name: getattr(found, field.name) for field in fields(found)}
        print_json(shown | {"before": _of_run(before), "after": _of_run(after)}, default=_of_change)
    else:
        folder = Path(after.folder)
        causes = (
            RunView(RunStore.open(folder)).causes if os.path.lexists(folder / "run.json") else []
        )
        print_comparison(console(), found, causes)
    raise typer.Exit(int(bool(found.new_failures or found.lost)))


def _of_run(run: RunEntry) -> dict[str, object]:
    return {
        name: getattr(run, name) for name in ("run_id", "started", "seconds", "folder")
    } | run.source.model_dump(exclude={"files"})


def _of_change(change: Change) -> dict[str, object]:
    named = ("verdict", "seconds", "accuracy", "note", "oracles", "blamed")
    before, after = (
        one and {name: getattr(one, name) for name in named}
        for one in (change.before, change.after)
    )
    return {"key": change.key, "scenario": change.after.scenario, "before": before, "after": after}
