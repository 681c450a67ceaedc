"""What commands that make runs share: where the history is, which code is under test, and writing a run down."""

from __future__ import annotations

import os
import sqlite3
import sys
from pathlib import Path

from harness.core.errors import HarnessError
from harness.store.history.database import DEFAULT_HISTORY, opened
from harness.store.history.entry import entry_of, write_run
from harness.store.history.trends import Trends, read_trends
from harness.store.run_folder import RunStore
from harness.store.source import Source, read_source

NONE = "none"


def history_file(value: str | None) -> Path | None:
    """The file of the history, or None for `none`."""
    if value is None:
        return DEFAULT_HISTORY
    return None if value == NONE else Path(value)


def source_under_test(commit: str = "", branch: str = "", plugins: tuple[Path, ...] = ()) -> Source:
    """The code under test: of the repository that holds the first plug-in, or else the working directory."""
    folder = plugins[0].parent if plugins else Path.cwd()
    return read_source(folder, os.environ, commit=commit, branch=branch)


def keep(store: RunStore, history: Path | None) -> Trends | None:
    """Write a run to the history and return what it says of these cases by now.

    A history that cannot be written costs one line on standard error: the run is in its folder whatever happens. So
    does Ctrl-C while another process keeps it locked, as the reports are still to be written.
    """
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
