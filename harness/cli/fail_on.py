"""`run --fail-on`: what fails a run besides failures, or which failures do not."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from harness.core.errors import InputError
from harness.core.records import FAILED
from harness.store.history.compare import previous_of
from harness.store.history.entry import CAUGHT, MISSED, entry_of
from harness.store.run_folder import RunStore

_Word = StrEnum("_Word", ["skip", "new", "error"])
FailOn = Annotated[
    list[_Word] | None,
    typer.Option("--fail-on", help="Exit code 1 for skips, for new failures only, or for errors; may be repeated."),
]


def code_of(store: RunStore, fail_on: Collection[str], history: Path | None, screen: Console) -> int:
    """The exit code of a run: 1 for a failure, 3 for an error, 2 if all cases were skipped, else 0.

    With `skip` and `error` in `fail_on`, these are failures too. With `new`, only failures that the run before in
    `history` did not have count. Without a run before, all failures are new.
    """
    ended = {result.key: result.verdict.value for result in store.results()}
    ended |= {f"{fault.case}!{fault.fault}": CAUGHT if fault.caught else MISSED for fault in store.faults()}
    counted = {*FAILED, MISSED, *fail_on}
    failed = {key for key, verdict in ended.items() if verdict in counted}
    if failed and "new" in fail_on and history is not None:
        with contextlib.suppress(InputError):
            if before := previous_of(entry_of(store), history):
                old = failed & {one.key for one in before.entries if one.verdict in counted}
                screen.print(f"not new, as in {before.run_id}: {len(old)} of {len(failed)}", markup=False)
                failed -= old
    if failed:
        return 1
    verdicts = set(ended.values())
    return 3 if "error" in verdicts else 2 if verdicts == {"skip"} else 0
