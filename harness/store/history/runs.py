"""Runs of the history: which there are, one in full, and which one a name means."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from harness.core.records import Verdict
from harness.store.history.entry import CaseEntry, FaultEntry, RunEntry
from harness.store.source import Source

MAX_LOOKED_BACK = 300
"""Runs that are looked through for one with cases in common."""
FAULT_KEY = "fault.case_id || '!' || fault.name"
_NEWEST_FIRST = "ORDER BY started DESC, id DESC"


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
    """Cases by verdict; all five are always there."""
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
    """Which runs are wanted; an empty value wants all."""

    since: str = ""
    """UTC, ISO 8601."""
    branch: str = ""
    commit: str = ""
    """The first digits of a commit."""

    def where(self) -> tuple[str, list[Any]]:
        """A condition on the table `run`, and its values."""
        parts: list[str] = ["1"]
        values: list[Any] = []
        for condition, value in (
            ("started >= ?", self.since),
            ("branch = ?", self.branch),
            ("substr(commit_id, 1, length(?)) = ?", self.commit),
        ):
            if value:
                parts.append(condition)
                values += [value] * condition.count("?")
        return " AND ".join(parts), values


@dataclass(frozen=True, slots=True)
class Jobs:
    """Which jobs are wanted: those of one scenario, the one with a key, or those of one run."""

    column: Literal["scenario", "key", "run"]
    value: str | int

    def where(self) -> tuple[str, list[Any]]:
        """A condition on the table `result`, and its values."""
        table, column = ("result", "job") if self.column == "run" else ("job", "id")
        return f"result.job IN (SELECT {column} FROM {table} WHERE {self.column} = ?)", [self.value]

    def where_fault(self) -> tuple[str, list[Any]]:
        """The same on the table `fault`."""
        if self.column == "scenario":
            return "fault.scenario = ?", [self.value]
        if self.column == "key":
            return f"{FAULT_KEY} = ?", [self.value]
        return f"{FAULT_KEY} IN (SELECT other.case_id || '!' || other.name FROM fault other WHERE run = ?)", [
            self.value
        ]


def run_ids(connection: sqlite3.Connection, wanted: Filter, *, jobs: Jobs | None = None, limit: int) -> list[int]:
    """The newest `limit` runs that `wanted` lets through, newest first; with `jobs` those that have one of them."""
    where, values = wanted.where()
    if jobs is not None:
        (of_case, first), (of_fault, second) = jobs.where(), jobs.where_fault()
        where += f" AND id IN (SELECT run FROM result WHERE {of_case} UNION SELECT run FROM fault WHERE {of_fault})"
        values += [*first, *second]
    found = connection.execute(f"SELECT id FROM run WHERE {where} {_NEWEST_FIRST} LIMIT ?", [*values, limit])
    return [row["id"] for row in found]


def points(connection: sqlite3.Connection, runs: Iterable[int]) -> list[RunPoint]:
    """These runs with their totals, in the order given."""
    ids = list(runs)
    totals = {run: dict.fromkeys((verdict.value for verdict in Verdict), 0) for run in ids}
    counted = f"SELECT run, verdict, count(*) AS n FROM result WHERE run IN ({_marks(ids)}) GROUP BY run, verdict"
    for row in connection.execute(counted, ids):
        totals[row["run"]][row["verdict"]] = row["n"]
    faults = f"SELECT run, sum(caught) AS caught, count(*) AS n FROM fault WHERE run IN ({_marks(ids)}) GROUP BY run"
    caught = {row["run"]: (row["caught"], row["n"]) for row in connection.execute(faults, ids)}
    rows = {row["id"]: row for row in connection.execute(f"SELECT * FROM run WHERE id IN ({_marks(ids)})", ids)}
    return [_point(rows[run], totals[run], *caught.get(run, (0, 0))) for run in ids]


def knows(connection: sqlite3.Connection, jobs: Jobs) -> bool:
    """Whether the history has a result of one of these jobs, or a fault that was put back in one."""
    return bool(run_ids(connection, Filter(), jobs=jobs, limit=1))


def scenarios(connection: sqlite3.Connection) -> list[str]:
    """The scenarios that the history has results of."""
    return [row[0] for row in connection.execute("SELECT scenario FROM job UNION SELECT scenario FROM fault")]


def results_of(connection: sqlite3.Connection, key: str, runs: Sequence[int]) -> list[CaseEntry | None]:
    """What became of one job in these runs, with the reasons; None for a run without it."""
    rows = connection.execute(
        "SELECT result.*, job.key, job.scenario, note.text FROM result JOIN job ON job.id = result.job "
        f"LEFT JOIN note ON note.id = result.note WHERE key = ? AND run IN ({_marks(runs)})",
        [key, *runs],
    )
    found = {row["run"]: case_of(row) for row in rows}
    return [found.get(run) for run in runs]


def number_of(connection: sqlite3.Connection, run_id: str) -> int | None:
    """The row of a run, or None when the history does not have it."""
    row = connection.execute("SELECT id FROM run WHERE run_id = ?", (run_id,)).fetchone()
    return int(row["id"]) if row else None


def newest(connection: sqlite3.Connection) -> int | None:
    """The run that started last."""
    row = connection.execute(f"SELECT id FROM run {_NEWEST_FIRST} LIMIT 1").fetchone()
    return int(row["id"]) if row else None


def earlier(connection: sqlite3.Connection, run: RunEntry, *, branch: str = "", limit: int = 1) -> list[int]:
    """The newest runs before `run` that have a case or a fault in common with it, newest first."""
    where, values = Filter(branch=branch).where()
    own = number_of(connection, run.run_id)
    before = connection.execute(
        f"SELECT id FROM run WHERE {where} AND (started, id) < (?, ?) AND run_id != ? {_NEWEST_FIRST} LIMIT ?",
        # A run that the history does not have is newer than all that started in its second.
        [*values, run.started, own if own is not None else 1 << 62, run.run_id, MAX_LOOKED_BACK],
    ).fetchall()
    cases = {case.key for case in run.cases}
    faults = {fault.key for fault in run.faults}
    found: list[int] = []
    for (number,) in before:
        if _shares(connection, number, cases, faults):
            found.append(number)
            if len(found) == limit:
                break
    return found


def _shares(connection: sqlite3.Connection, run: int, cases: set[str], faults: set[str]) -> bool:
    keys = connection.execute("SELECT key FROM result JOIN job ON job.id = result.job WHERE run = ?", (run,))
    if any(key in cases for (key,) in keys):
        return True
    put_back = connection.execute(f"SELECT {FAULT_KEY} FROM fault WHERE run = ?", (run,))
    return any(key in faults for (key,) in put_back)


def read_run(connection: sqlite3.Connection, run: int) -> RunEntry:
    """One run in full."""
    row = connection.execute("SELECT * FROM run WHERE id = ?", (run,)).fetchone()
    cases = connection.execute(
        "SELECT result.*, job.key, job.scenario, note.text FROM result JOIN job ON job.id = result.job "
        "LEFT JOIN note ON note.id = result.note WHERE run = ? ORDER BY job.id",
        (run,),
    )
    faults = connection.execute(
        "SELECT fault.*, note.text FROM fault LEFT JOIN note ON note.id = fault.note WHERE run = ? "
        "ORDER BY scenario, name, case_id",
        (run,),
    )
    return RunEntry(
        run_id=row["run_id"], started=row["started"], seconds=row["seconds"], command=row["command"],
        source=Source(commit=row["commit_id"], branch=row["branch"], changes=row["changes"]), variant=row["variant"],
        folder=row["folder"], num_planned=row["num_planned"], cases=tuple(case_of(row) for row in cases),
        faults=tuple(_fault_of(row) for row in faults),
    )  # fmt: skip


def case_of(row: sqlite3.Row) -> CaseEntry:
    """A row of `result`, joined with `job` and `note`."""
    return CaseEntry(
        key=row["key"], scenario=row["scenario"], verdict=row["verdict"], seconds=row["seconds"], seed=row["seed"],
        device=row["device"], note=row["text"] or "", oracles=_split(row["oracles"]), blamed=_split(row["blamed"]),
        accuracies=numbers(row["accuracies"]),
    )  # fmt: skip


def _fault_of(row: sqlite3.Row) -> FaultEntry:
    return FaultEntry(
        fault=row["name"], scenario=row["scenario"], case=row["case_id"], caught=bool(row["caught"]),
        seconds=row["seconds"], note=row["text"] or "", by=_split(row["oracles"]), blamed=_split(row["blamed"]),
        accuracies=numbers(row["accuracies"]),
    )  # fmt: skip


def _point(row: sqlite3.Row, totals: dict[str, int], num_caught: int, num_faults: int) -> RunPoint:
    return RunPoint(
        run_id=row["run_id"], started=row["started"], seconds=row["seconds"], commit=row["commit_id"],
        branch=row["branch"], is_changed=bool(row["changes"]), totals=totals, num_planned=row["num_planned"],
        command=row["command"], folder=row["folder"], num_caught=num_caught, num_faults=num_faults,
    )  # fmt: skip


def numbers(text: str | None) -> tuple[float, ...]:
    """Accuracies by epoch as they are stored."""
    return tuple(json.loads(text)) if text else ()


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def _marks(values: Sequence[int]) -> str:
    return ",".join("?" * len(values))
