"""What commands that make runs share: where the history is, which code is under test, and writing a run down."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from harness.store.history.trends import Trends
    from harness.store.run_folder import RunStore
    from harness.store.source import Source

NONE = "none"

History = Annotated[
    str | None,
    typer.Option(
        "--history", metavar="FILE|none", envvar="MLA_HARNESS_HISTORY", show_envvar=True,
        help="The results of all runs [reports/history.sqlite].",
    ),
]  # fmt: skip
Commit = Annotated[
    str,
    typer.Option(
        "--commit", metavar="SHA", envvar="MLA_HARNESS_COMMIT", show_envvar=True, help="The code under test [git's]."
    ),
]
Branch = Annotated[
    str,
    typer.Option("--branch", metavar="NAME", envvar="MLA_HARNESS_BRANCH", show_envvar=True, help="Its branch [git's]."),
]


def history_file(value: str | None) -> Path | None:
    """The file of the history, or None for `none`."""
    from harness.store.history.database import DEFAULT_HISTORY

    if value is None:
        return DEFAULT_HISTORY
    return None if value == NONE else Path(value)


def source_under_test(commit: str = "", branch: str = "", plugins: tuple[Path, ...] = ()) -> Source:
    """The code under test: of the repository that holds the first plug-in, or else the working directory."""
    from harness.store.source import read_source

    folder = plugins[0].parent if plugins else Path.cwd()
    return read_source(folder, os.environ, commit=commit, branch=branch)


def keep(store: RunStore, history: Path | None) -> Trends | None:
    """Write a run to the history and return what it says of these cases by now.

    A history that cannot be written costs one line on standard error: the run is in its folder whatever happens. So
    does Ctrl-C while another process keeps it locked, as the reports are still to be written.
    """
    import sqlite3

    from harness.core.errors import HarnessError
    from harness.store.history.database import opened
    from harness.store.history.entry import entry_of
    from harness.store.history.trends import read_trends
    from harness.store.history.write import write_run

    if history is None:
        return None
    try:
        with opened(history, create=True) as connection:
            write_run(connection, entry_of(store))
    except (HarnessError, OSError, sqlite3.Error, ValueError, KeyboardInterrupt) as error:
        told = " ".join(str(error).split()) or "interrupted"
        print(f"mla-harness: warning: this run is not in the history: {told}", file=sys.stderr)
        return None
    return read_trends(history, store.plan.run_id)
