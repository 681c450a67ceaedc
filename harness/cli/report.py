"""`mla-harness report RUN`: make the reports of a stored run again, as Markdown, or as a table by
its cases' values.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.output import console, print_json, warn
from harness.cli.run_and_report import past_runs
from harness.cli.shared_options import History, Json, Out
from harness.core.cases import Case
from harness.core.errors import InputError
from harness.core.extras import pandas
from harness.core.records import CaseResult
from harness.core.registry import nearest
from harness.report.console import table
from harness.report.markdown import render
from harness.report.markdown import table as markdown_table
from harness.report.progress import Waiting
from harness.report.run_view import RunView
from harness.report.terminal import print_run
from harness.report.wording import printable
from harness.report.write import write_reports
from harness.scenario.variant import shown
from harness.store.epochs import take_in
from harness.store.history.compare import RunComparison, compare, previous_of
from harness.store.history.entry import entry_of
from harness.store.history.trends import Trends, trends_of
from harness.store.run_folder import DEFAULT_RUNS, RunStore, find_run
from harness.store.summary import canonical as canonical_lines
from harness.store.summary import summarise


def report(
    name: Annotated[
        str, typer.Argument(metavar="RUN", help="A run directory, a run id, or 'latest'.")
    ] = "latest",
    out: Out = None,
    history: History = None,
    markdown: Annotated[
        bool,
        typer.Option(
            "--markdown",
            help="Print Markdown for a CI job, with the changes since the previous run.",
        ),
    ] = False,
    canonical: Annotated[
        bool,
        typer.Option(
            "--canonical", help="Print the findings as sorted lines without times, to compare runs."
        ),
    ] = False,
    pivot: Annotated[
        str | None,
        typer.Option(
            metavar="ROWS/COLUMNS",
            help="Print its cases by values, such as kernel,kv/site,pattern.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Print a stored run, and write its reports again."""
    if (markdown and not pivot) + json + canonical + bool(pivot) > 1:
        raise InputError(
            "report: --markdown, --json, --canonical and --pivot are ways to print it; give one"
        )
    store = RunStore.open(find_run(name, Path(out) if out else DEFAULT_RUNS))
    if "epochs" in store.plan.options:
        take_in(store)
    if canonical:
        sys.stdout.write(canonical_lines(store))
    elif pivot:
        _print_pivot(*pivot_of(store, pivot), markdown=markdown)
    else:
        # Standard output is for what is asked for.
        with Waiting(console(as_json=True), "reading the run, and writing its reports"):
            view = RunView(store)
            write_reports(view)
        if markdown:
            sys.stdout.write(render(view, *_since_before(store, history)))
        elif json:
            print_json(summarise(store, view.coverages))
        else:
            print_run(console(), view, with_table=True)


def _print_pivot(titles: list[str], rows: list[list[str]], *, markdown: bool) -> None:
    if markdown:
        print(markdown_table(titles, rows))
        return
    shown = table(*titles)
    for row in rows:
        shown.add_row(*map(printable, row))
    console().print(shown)


def _since_before(
    store: RunStore, history: str | None
) -> tuple[RunComparison | None, Trends | None]:
    """The changes since the previous run, if there is one, and the trends of the run's cases.

    Warns of damaged runs.
    """
    run = entry_of(store)
    runs = past_runs(history, store.path.parent)
    if runs is None:
        return None, None
    before = previous_of(run, runs)
    trends = trends_of(run, runs)
    for reason in runs.damaged:
        warn(f"left out of the trends: {reason}")
    return compare(before, run) if before else None, trends


def pivot_of(store: RunStore, shape: str) -> tuple[list[str], list[list[str]]]:
    """The titles and rows of a table with the values `shape`:

    `kernel,kv/site,pattern` is ROWS/COLUMNS.

    A cell counts the verdicts of its cases, a failure with its first oracle. Raises InputError for
    a value that no case of the run has, and without pandas.
    """
    before, _, after = shape.partition("/")
    if not before or not after:
        raise InputError(f"--pivot {shape}: write ROWS/COLUMNS, such as kernel,kv/site,pattern")
    rows = before.split(",")
    columns = after.split(",")
    jobs = store.jobs_by_key()
    cases = pandas.DataFrame(
        [
            _values(jobs[result.key].case) | {"outcome": _outcome(result)}
            for result in store.results()
        ]
    ).fillna("")
    known = sorted(cases.columns.drop("outcome", errors="ignore"))
    for name in (*rows, *columns):
        if name not in known:
            raise InputError(
                f"--pivot: no case of the run has {name!r}; {nearest(name, known, see='')}"
            )
    column = cases[columns].agg(" ".join, axis=1)
    # In the order of the plan, as people wrote their scenarios.
    cells = cases.groupby([*(cases[name] for name in rows), column], sort=False)["outcome"].agg(
        _words
    )
    table = cells.unstack(fill_value="", sort=False).reset_index()
    return [*rows, *table.columns[len(rows) :]], table.to_numpy().tolist()


def _values(case: Case) -> dict[str, str]:
    """What a case may be sorted by: its parameters, and its scenario, op, kernel, pattern and
    sites.
    """
    sites = case.poison.sites
    kernels = case.kernels()
    own = {
        "scenario": case.scenario,
        "system": case.system,
        "pattern": next(iter(case.poison.patterns), ""),
    }
    own["site"] = sites[0] if len(sites) == 1 else f"{len(sites)} sites"
    return {name: shown(value) for name, value in case.values().items()} | own | kernels


def _outcome(result: CaseResult) -> str:
    if "rejects" in result.looked_at:
        # What a corrupted call came to.
        return (
            f"{result.verdict.value}"
            f" {result.findings[0].cause if result.findings else result.cause}"
        )
    oracle = result.findings[0].oracle if result.findings else ""
    return " ".join(filter(None, (result.verdict.value, oracle)))


def _words(outcomes: Iterable[str]) -> str:
    """`pass` for one case, `3 pass, 1 fail finite` for several."""
    first, *others = sorted(Counter(outcomes).items())
    return (
        ", ".join(f"{count} {outcome}" for outcome, count in (first, *others))
        if others or first[1] > 1
        else first[0]
    )
