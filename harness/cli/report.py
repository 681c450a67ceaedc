"""`mla-harness report RUN`: make the reports of a stored run again; also as Markdown."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.making_runs import history_file
from harness.cli.options import History, Json, Out
from harness.cli.output import console, print_json, warn
from harness.core.errors import HarnessError, InputError
from harness.report.markdown import render
from harness.report.terminal import print_run
from harness.report.write import write_reports
from harness.store.epochs import take_in
from harness.store.history.compare import Comparison, compare, previous_of
from harness.store.history.entry import entry_of
from harness.store.history.trends import read_trends
from harness.store.run_folder import DEFAULT_RUNS, RunStore, find_run
from harness.store.summary import canonical as canonical_lines
from harness.store.summary import summarise


def report(
    name: Annotated[str, typer.Argument(metavar="RUN", help="A run directory, a run id, or 'latest'.")] = "latest",
    out: Out = None,
    history: History = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown for a CI job, with the changes since the previous run.")
    ] = False,
    canonical: Annotated[
        bool, typer.Option("--canonical", help="Print the findings as sorted lines without times, to compare runs.")
    ] = False,
    json: Json = False,
) -> None:
    """Print a stored run, and write its reports again."""
    if markdown + json + canonical > 1:
        raise InputError("report: --markdown, --json and --canonical are ways to print it; give one")
    store = RunStore.open(find_run(name, Path(out) if out else DEFAULT_RUNS))
    if "epochs" in store.plan.options:
        take_in(store)
    if canonical:
        sys.stdout.write(canonical_lines(store))
        return
    kept = history_file(history)
    trends = read_trends(kept, store.plan.run_id)
    write_reports(store, trends)
    if markdown:
        sys.stdout.write(render(store, _since_before(store, kept), trends))
        return
    if json:
        print_json(summarise(store))
        return
    print_run(console(), store, with_table=True)


def _since_before(store: RunStore, history: Path | None) -> Comparison | None:
    """The changes since the previous run, if the history has one."""
    if history is None or not history.is_file():
        return None
    run = entry_of(store)
    try:
        before = previous_of(run, history)
    except HarnessError as error:
        warn(f"nothing to compare with: {error}")
        return None
    return compare(before, run) if before else None
