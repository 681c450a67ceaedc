"""`mla-harness compare`: compare two runs, new failures first."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.output import console, print_json, warn, write_page
from harness.cli.run_and_report import past_runs
from harness.cli.shared_options import History, Json, Out
from harness.core import unreadable
from harness.core.errors import InputError
from harness.report.run_view import RunView
from harness.report.terminal_history import print_comparison
from harness.store.history.compare import LATEST, Change, RunComparison, choose
from harness.store.history.compare import compare as compare_runs
from harness.store.history.entry import PastRuns, RunEntry
from harness.store.run_folder import DEFAULT_RUNS, RunStore


def compare(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN [RUN]]",
            help="The older run, then the newer: id, folder, latest or previous. More with --html.",
        ),
    ] = None,
    branch: Annotated[
        str, typer.Option(metavar="NAME", help="Take 'previous' from this branch.")
    ] = "",
    history: History = None,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a page of the changes, and of accuracy beside each other.",
        ),
    ] = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Compare two runs; exit code 1 if something fails that did not fail before, or no longer
    runs.
    """
    if names and len(names) > 2 and (html is None or json):
        how = "leave out --json" if html else "add --html FILE for more"
        raise InputError(f"compare: takes two runs, the older first, not {len(names)}; {how}")
    runs = past_runs(history, out) or PastRuns(out or DEFAULT_RUNS)
    before, after = choose((names or [])[:2], runs, branch=branch)
    if (not names or names[-1] == LATEST) and runs.names and runs.names[0] > after.run_id:
        warn(
            f"{runs.names[0]} is newer than {after.run_id}, but nothing ran in it; to compare it,"
            " name it"
        )
    for reason in runs.damaged:
        unreadable.note(reason)
    found = compare_runs(before, after)
    others = [choose([(names or [])[0], name], runs)[1] for name in (names or [])[2:]]
    compared = [found, *(compare_runs(before, other) for other in others)]
    if html is not None:
        _write_page(html, compared)
    if json:
        shown = {field.name: getattr(found, field.name) for field in fields(found)}
        print_json(shown | {"before": _of_run(before), "after": _of_run(after)}, default=_of_change)
    else:
        for one in compared:
            view = _view_of(one.after)
            print_comparison(console(), one, view.causes if view else [])
    raise typer.Exit(int(any(one.new_failures or one.lost for one in compared)))


def _view_of(run: RunEntry) -> RunView | None:
    """The stored run; None if its summary alone is kept."""
    folder = Path(run.folder)
    return RunView(RunStore.open(folder)) if os.path.lexists(folder / "run.json") else None


def _write_page(file: Path, compared: list[RunComparison]) -> None:
    # Its templates need a tenth of a second, which the terminal's lines do not.
    from harness.report.compare_page import render

    entries = [compared[0].before, *(one.after for one in compared)]
    views = {entry.folder: view for entry in entries if (view := _view_of(entry))}
    write_page(file, render(compared, views, file.parent))


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
