"""`mla-harness history`: the results of a scenario or a case from run to run. Also imports run folders."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.making_runs import NO_HISTORY, history_file
from harness.cli.options import History, Json
from harness.cli.output import console, print_json
from harness.core.errors import InputError, UnknownNameError
from harness.core.registry import nearest
from harness.report.terminal_history import print_case, print_runs, print_scenario
from harness.report.wording import num
from harness.store.history.database import opened
from harness.store.history.entry import entry_of, write_run
from harness.store.history.runs import Filter, moment, results_of, run_ids, scenarios
from harness.store.history.trends import trends_over
from harness.store.run_folder import DEFAULT_RUNS, RunStore

MAX_RUNS = 100_000


def history(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[SCENARIO|CASE]", help="What to follow [default: list all runs].")
    ] = None,
    since: Annotated[str, typer.Option(metavar="WHEN", help="Only newer runs: 7d, 12h, 2w or a date.")] = "",
    branch: Annotated[str, typer.Option(metavar="NAME", help="Only runs of this git branch.")] = "",
    commit: Annotated[str, typer.Option(metavar="SHA", help="Only runs of this commit.")] = "",
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=MAX_RUNS, help="Only the newest N runs.")] = 20,
    take_in: Annotated[
        bool, typer.Option("--import", help="Import the named run folders, such as reports/runs/*.")
    ] = False,
    history: History = None,
    json: Json = False,
) -> None:
    """Follow a scenario or a case from run to run."""
    path = history_file(history)
    given = names or []
    if path is None:
        raise InputError(f"--history {NO_HISTORY}: there is nothing to read; name a file")
    if take_in:
        _take_in(given, path)
        return
    if len(given) > 1:
        raise InputError(f"history: follows one name, not {len(given)}; run folders are taken in with --import")
    wanted = Filter(since=moment(since) if since else "", branch=branch, commit=commit.lower())
    with opened(path) as connection:
        if given:
            _follow(connection, given[0], wanted, limit, as_json=json)
        else:
            _list(connection, wanted, limit, as_json=json)


def _list(connection: sqlite3.Connection, wanted: Filter, limit: int, *, as_json: bool) -> None:
    found = trends_over(connection, run_ids(connection, wanted, limit=limit)[::-1])
    if as_json:
        print_json({"runs": [asdict(run) for run in found.runs], "flaky": [asdict(case) for case in found.flaky]})
    else:
        print_runs(console(), found)


def _follow(connection: sqlite3.Connection, name: str, wanted: Filter, limit: int, *, as_json: bool) -> None:
    is_case = "[" in name
    runs = run_ids(connection, replace(wanted, name=name), limit=limit)[::-1]
    if not runs:
        _refuse_unknown(connection, name)
    found = trends_over(connection, runs, name)
    results = results_of(connection, name, runs) if is_case else []
    if as_json:
        own = {"results": [result and asdict(result) for result in results]} if is_case else {}
        print_json(asdict(found) | own)
    elif is_case:
        print_case(console(), name, found, results)
    else:
        print_scenario(console(), name, found)


def _refuse_unknown(connection: sqlite3.Connection, name: str) -> None:
    if run_ids(connection, Filter(name=name), limit=1):
        return
    hint = nearest(name.partition("[")[0], scenarios(connection), see="mla-harness history")
    raise UnknownNameError(f"the history has no result of {name!r}; {hint}")


def _take_in(names: Sequence[str], path: Path) -> None:
    """Write run folders to the history, in order of time. Other paths are reported and left out."""
    if not names:
        raise InputError(f"--import: name the run folders, for example {DEFAULT_RUNS}/*")
    stores, refused = [], []
    for name in names:
        try:
            stores.append(RunStore.open(Path(name)))
        except InputError as error:
            refused.append(str(error))
    with opened(path, create=True) as connection:
        for store in sorted(stores, key=lambda one: (one.plan.started, one.plan.run_id)):
            try:
                write_run(connection, entry_of(store))
            except InputError as error:
                refused.append(str(error))
    for reason in refused:
        print(f"mla-harness: left out: {' '.join(reason.split())}", file=sys.stderr)
    print(f"{num(len(names) - len(refused), 'run')} taken into {path}")
    if len(refused) == len(names):
        raise InputError("--import: none of these is a run folder that can be read")
