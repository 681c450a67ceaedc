"""Which two runs `compare` is about: run ids, run folders, `latest` and `previous`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness.core.errors import InputError
from harness.core.registry import nearest
from harness.store.history.database import REBUILD, opened
from harness.store.history.entry import RunEntry, entry_of
from harness.store.history.runs import earlier, newest, number_of, read_run
from harness.store.run_folder import RunStore, find_run

LATEST, PREVIOUS = "latest", "previous"


def choose(names: Sequence[str], history: Path | None, root: Path, *, branch: str = "") -> tuple[RunEntry, RunEntry]:
    """The older and the newer run that `names` mean; none means `previous latest`, one is compared with `previous`.

    `latest` is the run that started last; `previous` the newest before the other one that has cases in common with
    it, of `branch` if one is given. A folder is read itself; other names are sought in the history, then in `root`.
    Raises InputError for what is not there.
    """
    *first, newer = names or [LATEST]
    (older,) = first or [PREVIOUS]
    if newer == PREVIOUS:
        raise InputError(f"{PREVIOUS}: is the run before the one that it is compared with; write it first")
    with _connected(history) as connection:
        after = _named(newer, connection, root)
        if older != PREVIOUS:
            return _named(older, connection, root), after
        found = earlier(connection, after, branch=branch) if connection else []
        if connection is None or not found:
            where = f" on branch {branch!r}" if branch else ""
            raise InputError(
                f"{PREVIOUS}: the history has no run{where} before {after.run_id} with a case in common; name two "
                f"runs, or take run folders in with: {REBUILD}"
            )
        return read_run(connection, found[0]), after


def previous_of(run: RunEntry, history: Path) -> RunEntry | None:
    """The run that `previous` means for `run`, or None when there is none. Raises InputError as :func:`choose` does."""
    with opened(history) as connection:
        found = earlier(connection, run)
        return read_run(connection, found[0]) if found else None


@contextmanager
def _connected(history: Path | None) -> Iterator[sqlite3.Connection | None]:
    if history is None or not history.is_file():
        yield None
        return
    with opened(history) as connection:
        yield connection


def _named(name: str, connection: sqlite3.Connection | None, root: Path) -> RunEntry:
    if (Path(name) / "run.json").is_file():
        return entry_of(RunStore.open(Path(name)))
    if connection is not None:
        number = newest(connection) if name == LATEST else number_of(connection, name)
        if number is not None:
            return read_run(connection, number)
    if name == LATEST or (root / name / "run.json").is_file():
        return entry_of(RunStore.open(find_run(name, root)))
    known = [row["run_id"] for row in connection.execute("SELECT run_id FROM run")] if connection else []
    near = f"; {nearest(name, known, see='')}" if 0 < len(known) <= 5 or _is_near(name, known) else ""
    raise InputError(f"no run {name!r}: give a run id, a run folder, '{LATEST}' or '{PREVIOUS}'{near}")


def _is_near(name: str, known: list[str]) -> bool:
    return nearest(name, known).startswith("did you mean")
