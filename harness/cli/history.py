"""`mla-harness history`: the results of a scenario or a case from run to run."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.cli.output import console, print_json, write_page
from harness.cli.run_and_report import past_runs
from harness.cli.shared_options import History, Json
from harness.core import unreadable
from harness.core.errors import InputError, UnknownNameError
from harness.core.registry import nearest
from harness.report.terminal_history import print_case, print_runs, print_scenario
from harness.store.history.entry import RunEntry, moment
from harness.store.history.trends import Trends, trends_over

MAX_RUNS = 100_000


def history(
    name: Annotated[
        str,
        typer.Argument(metavar="[SCENARIO|CASE]", help="What to follow [default: list all runs]."),
    ] = "",
    since: Annotated[
        str, typer.Option(metavar="WHEN", help="Only newer runs: 7d, 12h, 2w or a date.")
    ] = "",
    branch: Annotated[str, typer.Option(metavar="NAME", help="Only runs of this git branch.")] = "",
    commit: Annotated[str, typer.Option(metavar="SHA", help="Only runs of this commit.")] = "",
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=MAX_RUNS, help="Only the newest N runs.")
    ] = 20,
    history: History = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page of verdicts, seconds and accuracy by run."),
    ] = None,
    json: Json = False,
) -> None:
    """Follow a scenario or a case from run to run."""
    runs = past_runs(history)
    start = moment(since) if since else ""
    if runs is None:
        raise InputError("--history none: there is nothing to read; name a folder of runs")
    if not runs.names:
        raise InputError(f"{runs.root}: no run there yet; make one with: mla-harness run")

    def is_wanted(run: RunEntry) -> bool:
        is_there = not name or any(
            name in (entry.key, entry.scenario) for entry in run.entries.values()
        )
        return (
            is_there
            and branch in ("", run.source.branch)
            and run.source.commit.startswith(commit.lower())
        )

    recent = (run for run in runs if run.started >= start)
    # The newest runs are read first, and printed last.
    chosen = list(islice(filter(is_wanted, recent), limit))[::-1]
    for reason in runs.damaged:
        unreadable.note(reason)
    if (
        name
        and not chosen
        and not any(name in (one.key, one.scenario) for run in runs for one in run.entries.values())
    ):
        scenario = name.partition("[")[0]
        known = {one.scenario for run in runs for one in run.entries.values()}
        hint = nearest(scenario, sorted(known), see="mla-harness history")
        raise UnknownNameError(f"no run in {runs.root} has a result of {name!r}; {hint}")
    found = trends_over(chosen, name)
    results = [run.entries.get(name) for run in chosen] if "[" in name else []
    if html is not None:
        _write_page(html, found, name)
    if json:
        own = {"results": [result and asdict(result) for result in results]} if results else {}
        every = {"cases": [asdict(case) for case in found.cases]}
        shown = every | own if name else {"flaky": [asdict(case) for case in found.flaky]}
        print_json({"runs": [run_object(run) for run in found.runs]} | shown)
    elif results:
        print_case(console(), name, found, results)
    elif name:
        print_scenario(console(), name, found)
    else:
        print_runs(console(), found)


def _write_page(file: Path, found: Trends, name: str) -> None:
    """Write the page. Raises InputError if no run was chosen."""
    # Its templates need a tenth of a second, which the terminal's table does not.
    from harness.report.history_page import render

    if not found.runs:
        raise InputError("--html: no run was chosen; take --since, --branch or --commit away")
    write_page(file, render(found, file.parent, name))


def run_object(run: RunEntry) -> dict[str, Any]:
    """The facts of a run, without its results, for JSON."""
    named = (
        "run_id",
        "started",
        "seconds",
        "command",
        "folder",
        "num_planned",
        "totals",
        "num_caught",
    )
    return (
        {name: getattr(run, name) for name in named}
        | run.source.model_dump(exclude={"files"})
        | {"num_faults": len(run.faults)}
    )
