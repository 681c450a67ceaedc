"""`run --fail-on`: what fails a run besides failures, or which failures do not."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console

from harness.core.records import FAILED
from harness.report.wording import num
from harness.store.history.compare import last_green
from harness.store.history.entry import MISSED, RunEntry, entry_of
from harness.store.history.runs import PastRuns
from harness.store.run_folder import RunStore

_Word = StrEnum("_Word", ["skip", "new", "error"])
FailOn = Annotated[
    list[_Word] | None,
    typer.Option("--fail-on", help="Exit code 1 for skips, for new failures only, or for errors; may be repeated."),
]
Against = Annotated[
    str | None,
    typer.Option(metavar="RUN", help="With --fail-on new: the run with failures that you accept [default: none]."),
]


def code_of(
    store: RunStore, fail_on: Collection[str], runs: PastRuns | None, accepted: RunEntry | None, screen: Console
) -> int:
    """The exit code of a run: 1 for a failure, 3 for an error, 2 if all cases were skipped, else 0.

    With `skip` and `error` in `fail_on`, these are failures too. With `new`, failures of the run `accepted` do not
    count. Without it, the last green run among `runs` decides: all failures are new since then.
    """
    run = entry_of(store)
    counted = (*FAILED, MISSED, *fail_on)
    failed = {key for key, entry in run.entries.items() if entry.verdict in counted}
    if failed and "new" in fail_on and runs is not None:
        before = accepted or last_green(run, runs, counted)
        known = accepted.entries if accepted else {}
        old = {key for key in failed if key in known and known[key].verdict in counted}
        kind = "accepted" if accepted else "last green"
        since = f"since {before.run_id} ({kind} run)" if before else "as there is no green run before"
        screen.print(f"{len(failed - old)} of {num(len(failed), 'failure')} new {since}", markup=False, soft_wrap=True)
        failed -= old
    if failed:
        return 1
    verdicts = {result.verdict.value for result in store.results()} | {entry.verdict for entry in run.faults}
    return 3 if verdicts & {"error", "not-run"} else 2 if verdicts == {"skip"} else 0
