"""The two runs that `compare` is given: run ids, run folders, `latest` and `previous`."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from harness.core.errors import InputError
from harness.core.registry import nearest
from harness.store.history.database import REBUILD, opened, query
from harness.store.history.entry import RunEntry, entry_of
from harness.store.history.runs import earlier, newest, number_of, read_run
from harness.store.run_folder import RunStore, find_run

LATEST, PREVIOUS = "latest", "previous"


def choose(names: Sequence[str], history: Path | None, root: Path, *, branch: str = "") -> tuple[RunEntry, RunEntry]:
    """The older and the newer run of `names`. No name means `previous latest`; one name is compared with `previous`.

    `latest` is the run that started last. `previous` is the newest earlier run with a case in common, of `branch` if
    one is given. Other names are folders, run ids of the history, or folders in `root`. Raises InputError for a run
    that is missing.
    """
    *first, newer = names or [LATEST]
    (older,) = first or [PREVIOUS]
    if newer == PREVIOUS:
        raise InputError(f"{PREVIOUS}: is the run before the one that it is compared with; write it first")
    with opened(history) if history and history.is_file() else nullcontext() as connection:
        after = _named(newer, connection, root)
        before = _named(older, connection, root) if older != PREVIOUS else _previous(connection, after, branch)
    if before is None:
        where = f" on branch {branch!r}" if branch else ""
        raise InputError(
            f"{PREVIOUS}: the history has no run{where} before {after.run_id} with a case in common; name two runs, or "
            f"take run folders in with: {REBUILD}"
        )
    return before, after


def previous_of(run: RunEntry, history: Path) -> RunEntry | None:
    """The run that `previous` means for `run`, or None when there is none. Raises InputError as :func:`choose` does."""
    with opened(history) as connection:
        return _previous(connection, run)


def _previous(connection: sqlite3.Connection | None, run: RunEntry, branch: str = "") -> RunEntry | None:
    found = earlier(connection, run, branch=branch) if connection else []
    return read_run(connection, found[0]) if connection and found else None


def _named(name: str, connection: sqlite3.Connection | None, root: Path) -> RunEntry:
    if (Path(name) / "run.json").is_file():
        return entry_of(RunStore.open(Path(name)))
    if connection is not None:
        number = newest(connection) if name == LATEST else number_of(connection, name)
        if number is not None:
            return read_run(connection, number)
    if name == LATEST or (root / name / "run.json").is_file():
        return entry_of(RunStore.open(find_run(name, root)))
    known = list(query(connection, "SELECT run_id FROM run")["run_id"]) if connection else []
    is_near = 0 < len(known) <= 5 or nearest(name, known).startswith("did you mean")
    near = f"; {nearest(name, known, see='')}" if is_near else ""
    raise InputError(f"no run {name!r}: give a run id, a run folder, '{LATEST}' or '{PREVIOUS}'{near}")
