"""`mla-harness report RUN`: the reports of a run that exists, made again from what it stored."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.run import Json, Out


def report(
    name: Annotated[str, typer.Argument(metavar="RUN", help="A run directory, a run id, or 'latest'.")] = "latest",
    out: Out = None,
    json: Json = False,
) -> None:
    """Render the reports of a run again, and print it."""
    from harness.report.terminal import console_for, fault_line, print_run
    from harness.report.write import write_reports
    from harness.results.store import DEFAULT_RUNS, RunStore, find_run
    from harness.results.summary import summarise, to_json

    store = RunStore.open(find_run(name, Path(out) if out else DEFAULT_RUNS))
    if "epochs" in store.plan.options:
        from harness.results.accuracy import take_in

        take_in(store)
    write_reports(store)
    if json:
        sys.stdout.write(to_json(summarise(store.plan, store.results(), store.faults())))
        return
    console = console_for()
    print_run(console, store)
    for fault in store.faults():
        console.print(fault_line(fault), soft_wrap=True)
