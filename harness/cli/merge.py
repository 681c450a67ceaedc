"""`mla-harness merge RUN RUN …`: merge the shards of one plan into one run, and report it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from harness.cli.output import console, print_json
from harness.cli.run_and_report import is_all_skipped, nothing_shown
from harness.cli.shared_options import Json, Out, command_line
from harness.diagnose.run_jobs import exit_code
from harness.report.progress import Waiting
from harness.report.run_view import RunView
from harness.report.terminal import print_run
from harness.report.write import write_reports
from harness.store.merge import merge as put_together
from harness.store.run_folder import DEFAULT_RUNS, RunStore, find_run
from harness.store.summary import summarise


def merge(
    names: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Run directories of all shards.")
    ],
    out: Out = None,
    json: Json = False,
) -> None:
    """Merge the shards of one run."""
    root = out or DEFAULT_RUNS
    shards = [RunStore.open(find_run(name, root)) for name in names]
    with Waiting(console(as_json=True), "merging the shards"):
        merged = put_together(shards, root, command=command_line())
        view = RunView(merged)
        write_reports(view)
    print_run(console(json), view)
    if json:
        print_json(summarise(merged, view.coverages))
    if is_all_skipped([result.verdict for result in view.results]) and not view.faults:
        print(nothing_shown(merged), file=sys.stderr)
        raise typer.Exit(2)
    raise typer.Exit(exit_code(view.results) or int(not all(fault.caught for fault in view.faults)))
