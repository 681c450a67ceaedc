"""The SQLite file of the history: its tables version by version, opening, migration, queries, and errors in one line.

To change the tables, append a tuple of statements to `MIGRATIONS` and never alter a released one. The number of tuples
is the version (`PRAGMA user_version`). An older file is migrated in one transaction when it is opened; a newer file is
refused.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness.core.errors import InputError
from harness.core.extras import pandas as pd

DEFAULT_HISTORY = Path("reports") / "history.sqlite"
LOCK_SECONDS = 5.0
"""How long one process waits for another that writes; a run is written in some hundredths of a second."""
REBUILD = "mla-harness history --import reports/runs/*"
APPLICATION_ID = 0x4D4C4148
"""`PRAGMA application_id` of a history: the letters MLAH."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE run (
            id INTEGER PRIMARY KEY,
            run_id TEXT NOT NULL UNIQUE,
            started TEXT NOT NULL,      -- UTC, ISO 8601: sorts as text
            seconds REAL NOT NULL,
            command TEXT NOT NULL,
            commit_id TEXT NOT NULL,
            branch TEXT NOT NULL,
            changes TEXT NOT NULL,      -- digest of what was not committed
            variant TEXT NOT NULL,      -- digest of options and versions
            folder TEXT NOT NULL,
            num_planned INTEGER NOT NULL
        )""",
        "CREATE INDEX run_by_time ON run (started, id)",
        """CREATE TABLE job (
            id INTEGER PRIMARY KEY,
            key TEXT NOT NULL UNIQUE,   -- case id, or id!fault
            scenario TEXT NOT NULL
        )""",
        "CREATE INDEX job_by_scenario ON job (scenario)",
        "CREATE TABLE note (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE)",
        """CREATE TABLE result (
            job INTEGER NOT NULL REFERENCES job,
            run INTEGER NOT NULL REFERENCES run ON DELETE CASCADE,
            verdict TEXT NOT NULL,
            seconds REAL NOT NULL,
            seed INTEGER NOT NULL,
            device TEXT NOT NULL,
            note INTEGER REFERENCES note,
            oracles TEXT NOT NULL,      -- names, comma-separated
            blamed TEXT NOT NULL,       -- sites, comma-separated
            accuracies TEXT,            -- JSON array, one number an epoch
            PRIMARY KEY (job, run)
        ) WITHOUT ROWID""",
        "CREATE INDEX result_by_run ON result (run, verdict)",
        """CREATE TABLE fault (
            run INTEGER NOT NULL REFERENCES run ON DELETE CASCADE,
            name TEXT NOT NULL,
            scenario TEXT NOT NULL,
            case_id TEXT NOT NULL,
            caught INTEGER NOT NULL,
            seconds REAL NOT NULL,
            note INTEGER REFERENCES note,
            oracles TEXT NOT NULL,
            blamed TEXT NOT NULL,
            accuracies TEXT,
            PRIMARY KEY (run, name, case_id)
        ) WITHOUT ROWID""",
    ),
)


@contextmanager
def opened(path: Path, *, create: bool = False) -> Iterator[sqlite3.Connection]:
    """The history at `path`, migrated to this version; with `create` it is made when it is missing.

    The connection is in autocommit mode; use :func:`transaction` to write. Raises InputError, also from inside the
    block, when the file is missing, foreign, damaged, newer, locked or not writable.
    """
    if not create and not path.is_file():
        raise InputError(f"{path}: no history there yet; a run makes it, or: {REBUILD}")
    try:
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
        mode = "rwc" if create else "rw"
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=LOCK_SECONDS
        )
    except (OSError, sqlite3.Error) as error:
        raise _explained(path, error) from None
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        _prepare(path, connection)
        yield connection
    except sqlite3.Error as error:
        raise _explained(path, error) from None
    finally:
        connection.close()


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Write all or nothing. Other writers wait; readers see the former state."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        yield


def query(connection: sqlite3.Connection, sql: str, **values: str | int | Sequence[str | int] | None) -> pd.DataFrame:
    """The table that `sql` selects; `:name` stands for one of `values`, ``json_each(:name)`` for the entries of a list.

    Raises sqlite3.Error, which :func:`opened` turns into one line.
    """
    plain = {
        name: value if isinstance(value, str | int | None) else json.dumps(list(value))
        for name, value in values.items()
    }
    try:
        return pd.read_sql_query(sql, connection, params=plain)
    except pd.errors.DatabaseError as error:
        raise error.__cause__ or error from None


def _prepare(path: Path, connection: sqlite3.Connection) -> None:
    if _version(path, connection) < len(MIGRATIONS):
        _use_write_ahead_log(connection)
        with transaction(connection):
            # Another process may have done it while this one waited.
            for statements in MIGRATIONS[_version(path, connection) :]:
                for statement in statements:
                    connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
    connection.execute("PRAGMA synchronous = FULL")


def _version(path: Path, connection: sqlite3.Connection) -> int:
    """The version of the tables, 0 of a file without any. Raises InputError for a file that is not ours."""
    (owner,) = connection.execute("PRAGMA application_id").fetchone()
    (num_tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if owner != APPLICATION_ID and (num_tables or owner or version):
        raise InputError(f"{path}: an SQLite file of another program; name another file with --history")
    if version > len(MIGRATIONS):
        raise InputError(
            f"{path}: written by a newer mla-harness (history version {version}, this one knows up to "
            f"{len(MIGRATIONS)}); update mla-harness, or name another file with --history"
        )
    return int(version)


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switch the file to WAL. SQLite does not always wait for this lock by itself, hence the loop.

    On a file system without shared memory SQLite keeps its rollback journal, which is slower and as safe.
    """
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _explained(path: Path, error: Exception) -> InputError:
    if isinstance(error, OSError):
        return InputError(f"{path}: cannot be made: {error.strerror}; name another file with --history")
    code = (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return InputError(f"{path}: another process has locked it for {LOCK_SECONDS:.0f} s; try again later")
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return InputError(f"{path}: not a history, or damaged ({error}); move it away and rebuild it: {REBUILD}")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        return InputError(f"{path}: cannot be used: {error}; name another file with --history")
    return InputError(f"{path}: its tables are damaged ({error}); move it away and rebuild it: {REBUILD}")
