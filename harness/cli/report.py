"""`mla-harness report RUN`: make the reports of a stored run again; also as Markdown."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.output import console, print_json, warn
from harness.cli.run_and_report import past_runs
from harness.cli.shared_options import History, Json, Out
from harness.core.errors import InputError
from harness.report.console import table
from harness.report.markdown import render
from harness.report.markdown import table as markdown_table
from harness.report.pivot import pivot as pivot_of
from harness.report.run_view import RunView
from harness.report.terminal import print_run
from harness.report.wording import printable
from harness.report.write import write_reports
from harness.store.epochs import take_in
from harness.store.history.compare import Comparison, compare, previous_of
from harness.store.history.entry import entry_of
from harness.store.history.trends import Trends, trends_of
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
    pivot: Annotated[
        str | None,
        typer.Option(metavar="ROWS/COLUMNS", help="Print its cases by values, such as kernel,kv/site,pattern."),
    ] = None,
    json: Json = False,
) -> None:
    """Print a stored run, and write its reports again."""
    if (markdown and not pivot) + json + canonical + bool(pivot) > 1:
        raise InputError("report: --markdown, --json, --canonical and --pivot are ways to print it; give one")
    store = RunStore.open(find_run(name, Path(out) if out else DEFAULT_RUNS))
    if "epochs" in store.plan.options:
        take_in(store)
    if canonical:
        sys.stdout.write(canonical_lines(store))
        return
    if pivot:
        _print_pivot(store, pivot, markdown=markdown)
        return
    view = RunView(store)
    write_reports(view)
    if markdown:
        sys.stdout.write(render(view, *_since_before(store, history)))
        return
    if json:
        print_json(summarise(store))
        return
    print_run(console(), view, with_table=True)


def _print_pivot(store: RunStore, shape: str, *, markdown: bool) -> None:
    titles, rows = pivot_of(store, shape)
    if markdown:
        print(markdown_table(titles, rows))
        return
    shown = table(*titles)
    for row in rows:
        shown.add_row(*map(printable, row))
    console().print(shown)


def _since_before(store: RunStore, history: str | None) -> tuple[Comparison | None, Trends | None]:
    """The changes since the previous run, if there is one, and the trends of the run's cases. Warns of damaged runs."""
    run, runs = entry_of(store), past_runs(history, store.path.parent)
    if runs is None:
        return None, None
    before, trends = previous_of(run, runs), trends_of(run, runs)
    for reason in runs.damaged:
        warn(f"left out of the trends: {reason}")
    return compare(before, run) if before else None, trends
