"""Runs of the history: which there are, one in full, and which runs came before one."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from harness.core.errors import InputError
from harness.core.extras import pandas as pd
from harness.core.records import Verdict
from harness.store.history.database import query
from harness.store.history.entry import CaseEntry, FaultEntry, RunEntry
from harness.store.source import Source

MAX_LOOKED_BACK = 300
"""Runs that are searched for one with a case in common."""
_NEWEST_FIRST = "ORDER BY started DESC, id DESC"
_JUDGED = """(EXISTS (SELECT 1 FROM result WHERE run = run.id AND verdict NOT IN ('skip', 'error'))
    OR EXISTS (SELECT 1 FROM fault WHERE run = run.id))"""
"""As `RunEntry.has_judged`."""
_BEFORE = "(started, id) {} (:started, coalesce((SELECT id FROM run WHERE run_id = :run_id), 1 << 62))"
"""A run that the history does not have is newer than all that started in its second."""
_CASES = """
    SELECT run, commit_id, changes, variant, job, key, scenario, verdict, result.seconds, seed, device,
        coalesce(text, '') AS note, oracles, blamed, coalesce(accuracies, '[]') AS accuracies
    FROM result JOIN run ON run.id = run JOIN job ON job.id = job LEFT JOIN note ON note.id = note
    WHERE run IN (SELECT value FROM json_each(:runs))
        AND job IN (SELECT id FROM job WHERE :name IN ('', scenario, key)) ORDER BY job, run"""
_FAULTS = """
    SELECT run, case_id || '!' || name AS key, name AS fault, scenario, case_id AS "case", caught, seconds,
        coalesce(text, '') AS note, oracles, blamed, coalesce(accuracies, '[]') AS accuracies
    FROM fault LEFT JOIN note ON note.id = note
    WHERE run IN (SELECT value FROM json_each(:runs)) AND :name IN ('', scenario, key)
    ORDER BY scenario, name, case_id, run"""

E = TypeVar("E", CaseEntry, FaultEntry)
_AGO = re.compile(r"(\d{1,5})\s*(m|h|d|w)", re.ASCII)
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True, slots=True)
class RunPoint:
    """One run in a list or a trend."""

    run_id: str
    started: str
    """UTC, ISO 8601."""
    seconds: float
    commit: str
    """Empty when not known."""
    branch: str
    is_changed: bool
    """Whether something was not committed."""
    totals: dict[str, int]
    """Cases by verdict; `known` only where a case ended so."""
    num_planned: int
    command: str = ""
    folder: str = ""
    num_caught: int = 0
    num_faults: int = 0

    @property
    def short_commit(self) -> str:
        """Seven digits, with a `+` when something was not committed."""
        return Source(commit=self.commit, changes="yes" if self.is_changed else "").short_commit


@dataclass(frozen=True, slots=True)
class Filter:
    """A selection of runs; an empty field selects all."""

    since: str = ""
    """UTC, ISO 8601."""
    branch: str = ""
    commit: str = ""
    """The first digits of a commit."""
    name: str = ""
    """A scenario, a case or a fault in a case (`id!fault`) that the run has a result of."""


def run_ids(connection: sqlite3.Connection, wanted: Filter, *, limit: int) -> list[int]:
    """The newest `limit` runs that match `wanted`, newest first."""
    found = query(
        connection,
        f"""SELECT id FROM run
        WHERE started >= :since AND :branch IN ('', branch) AND substr(commit_id, 1, length(:commit)) = :commit
            AND (:name = '' OR id IN (
                SELECT run FROM result WHERE job IN (SELECT id FROM job WHERE :name IN (scenario, key))
                UNION SELECT run FROM fault WHERE :name IN (scenario, case_id || '!' || name)))
        {_NEWEST_FIRST} LIMIT :limit""",
        **asdict(wanted),
        limit=limit,
    )
    return list(found["id"])


def points(connection: sqlite3.Connection, runs: Sequence[int]) -> tuple[RunPoint, ...]:
    """These runs with their totals, in the order given."""
    found = query(
        connection,
        """SELECT id, run_id, started, seconds, commit_id AS "commit", branch, changes <> '' AS is_changed, num_planned,
            command, folder, (SELECT count(*) FROM fault WHERE run = run.id AND caught) AS num_caught,
            (SELECT count(*) FROM fault WHERE run = run.id) AS num_faults
        FROM run WHERE id IN (SELECT value FROM json_each(:runs))""",
        runs=runs,
    )
    counts = query(
        connection,
        """SELECT run, verdict, count(*) AS num FROM result
        WHERE run IN (SELECT value FROM json_each(:runs)) GROUP BY run, verdict""",
        runs=runs,
    )
    totals = counts.pivot(index="run", columns="verdict", values="num")
    totals = totals.reindex(index=runs, columns=[verdict.value for verdict in Verdict]).fillna(0).astype(int)
    counted = [
        {name: count for name, count in total.items() if count or name != Verdict.KNOWN.value}
        for total in totals.to_dict("records")
    ]
    found = found.astype({"is_changed": bool}).set_index("id").loc[list(runs)]
    return tuple(RunPoint(**run, totals=total) for run, total in zip(found.to_dict("records"), counted, strict=True))


def scenarios(connection: sqlite3.Connection) -> list[str]:
    return list(query(connection, "SELECT scenario FROM job UNION SELECT scenario FROM fault")["scenario"])


def number_of(connection: sqlite3.Connection, run_id: str) -> int | None:
    """The row of a run, or None when the history does not have it."""
    row = connection.execute("SELECT id FROM run WHERE run_id = ?", (run_id,)).fetchone()
    return int(row[0]) if row else None


def newest(connection: sqlite3.Connection) -> int | None:
    """The run that started last, of those in which something ran."""
    found = query(connection, f"SELECT id FROM run WHERE {_JUDGED} {_NEWEST_FIRST} LIMIT 1")
    return next(iter(found["id"]), None)


def newer(connection: sqlite3.Connection, run: RunEntry) -> list[str]:
    """The ids of the runs that started after `run`."""
    sql = f"SELECT run_id FROM run WHERE {_BEFORE.format('>')} {_NEWEST_FIRST}"
    return list(query(connection, sql, run_id=run.run_id, started=run.started)["run_id"])


def earlier(connection: sqlite3.Connection, run: RunEntry, *, branch: str = "", limit: int = 1) -> list[int]:
    """The newest runs before `run` that have a case or a fault in common with it and judged some, newest first."""
    found = query(
        connection,
        f"""SELECT id FROM (
            SELECT * FROM run WHERE :branch IN ('', branch) AND run_id <> :run_id
                AND {_BEFORE.format("<")} AND {_JUDGED}
            {_NEWEST_FIRST} LIMIT {MAX_LOOKED_BACK}
        ) AS older
        WHERE EXISTS (SELECT 1 FROM result JOIN job ON job.id = job
                WHERE run = older.id AND key IN (SELECT value FROM json_each(:cases)))
            OR EXISTS (SELECT 1 FROM fault
                WHERE run = older.id AND case_id || '!' || name IN (SELECT value FROM json_each(:faults)))
        {_NEWEST_FIRST} LIMIT :limit""",
        branch=branch,
        run_id=run.run_id,
        started=run.started,
        cases=[case.key for case in run.cases],
        faults=[fault.key for fault in run.faults],
        limit=limit,
    )
    return list(found["id"])


def read_run(connection: sqlite3.Connection, run: int) -> RunEntry:
    (row,) = query(connection, 'SELECT *, commit_id AS "commit" FROM run WHERE id = :run', run=run).to_dict("records")
    return RunEntry(
        **{name: row[name] for name in ("run_id", "started", "seconds", "command", "variant", "folder", "num_planned")},
        source=Source(**{name: row[name] for name in ("commit", "branch", "changes")}),
        cases=_entries(CaseEntry, cases_of(connection, [run])),
        faults=_entries(FaultEntry, faults_of(connection, [run])),
    )


def results_of(connection: sqlite3.Connection, key: str, runs: Sequence[int]) -> list[CaseEntry | None]:
    """The result of one job in each of these runs, or None for a run without it."""
    found = cases_of(connection, runs, key)
    entries = dict(zip(found["run"], _entries(CaseEntry, found), strict=True))
    return [entries.get(run) for run in runs]


def cases_of(connection: sqlite3.Connection, runs: Sequence[int], name: str = "") -> pd.DataFrame:
    """The results in these runs, of one scenario or case if `name` is given.

    Columns are the fields of CaseEntry, lists as text, the numbers `run` and `job`, and the `commit_id`, `changes` and
    `variant` of the run. Rows are in the order of jobs.
    """
    return query(connection, _CASES, runs=runs, name=name)


def faults_of(connection: sqlite3.Connection, runs: Sequence[int], name: str = "") -> pd.DataFrame:
    """The faults injected in these runs. Columns are the fields of FaultEntry, lists as text, and `run` and `key`."""
    return query(connection, _FAULTS, runs=runs, name=name).astype({"caught": bool})


def _entries(kind: type[E], table: pd.DataFrame) -> tuple[E, ...]:
    names = {name: [tuple(filter(None, text.split(","))) for text in table[name]] for name in ("oracles", "blamed")}
    table = table.assign(**names, accuracies=[tuple(json.loads(text)) for text in table["accuracies"]])
    return tuple(kind(**row) for row in table[[field.name for field in fields(kind)]].to_dict("records"))


def moment(text: str, now: datetime | None = None) -> str:
    """`7d`, `12h`, `2w`, `90m`, `2026-11-01` or an ISO time -> UTC, as the history writes it. Raises InputError.

    A time without a zone is UTC, as all times in reports are.
    """
    match = _AGO.fullmatch(text.strip().lower())
    try:
        if match:
            when = (now or datetime.now(UTC)) - timedelta(**{_UNITS[match[2]]: int(match[1])})
        else:
            when = datetime.fromisoformat(text.strip())
            when = when if when.tzinfo else when.replace(tzinfo=UTC)
        return when.astimezone(UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError):
        raise InputError(f"--since {text!r}: write how long ago (7d, 12h, 90m, 2w) or a date (2026-11-01)") from None
