"""What became of the same cases from run to run: verdicts, accuracy, time, and cases that change without a cause."""

from __future__ import annotations

import sqlite3
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import HarnessError
from harness.store.history.database import opened
from harness.store.history.runs import Jobs, RunPoint, earlier, number_of, numbers, points, read_run

LETTERS = {"pass": "p", "fail": "f", "crash": "c", "skip": "s", "error": "e"}
ABSENT = "."
"""In place of a verdict: the case was not in that run."""
NUM_RUNS = 30
NUM_DURATIONS = 20


@dataclass(frozen=True, slots=True)
class Flakiness:
    """How often a case ended differently although nothing differed: code, seed, device, options, versions."""

    num_groups: int
    """Groups of two or more runs that were alike."""
    num_mixed: int
    """Those of them with different verdicts."""
    num_runs: int
    """Runs in these groups."""
    verdicts: dict[str, int]

    @property
    def share(self) -> float:
        """Of the groups, how many are mixed."""
        return self.num_mixed / self.num_groups


@dataclass(frozen=True, slots=True)
class CaseTrend:
    """One case over the runs of its :class:`Trends`; what is aligned with `runs` has one entry for each."""

    key: str
    """The case id, or `id!fault`."""
    scenario: str
    verdicts: str
    """A letter for each run, see `LETTERS`; a dot for a run without the case."""
    seconds: tuple[float | None, ...]
    accuracies: tuple[float | None, ...]
    """The lowest epoch of each run; None where none was measured."""
    flaky: Flakiness | None = None


@dataclass(frozen=True, slots=True)
class ScenarioTrend:
    """A scenario's cases together; everything is aligned with the runs."""

    scenario: str
    num_passed: tuple[int, ...]
    num_failed: tuple[int, ...]
    """Failed, crashed, or not to be judged."""
    num_skipped: tuple[int, ...]
    seconds: tuple[float | None, ...]
    accuracies: tuple[float | None, ...]
    """The lowest epoch of any case."""


@dataclass(frozen=True, slots=True)
class FaultTrend:
    """A fault that was put back in one case; everything is aligned with the runs."""

    fault: str
    case: str
    scenario: str
    outcomes: str
    """`y` caught, `n` not caught, a dot for a run that did not put it back."""
    seconds: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Trends:
    """Runs, oldest first, and what became of the cases and faults in them."""

    runs: tuple[RunPoint, ...]
    scenarios: tuple[ScenarioTrend, ...]
    cases: tuple[CaseTrend, ...]
    faults: tuple[FaultTrend, ...] = ()

    @property
    def flaky(self) -> tuple[CaseTrend, ...]:
        """The flaky cases, worst first."""
        return tuple(sorted((case for case in self.cases if case.flaky), key=_flaky_first))


def trends_of(path: Path, run_id: str, *, num_runs: int = NUM_RUNS) -> Trends:
    """The cases of one run over the earlier runs that have some of them, up to and with that run.

    Raises InputError when the history cannot be read; trends without a run when it does not have `run_id`.
    """
    with opened(path) as connection:
        number = number_of(connection, run_id)
        if number is None:
            return Trends((), (), ())
        before = earlier(connection, read_run(connection, number), limit=num_runs - 1)
        return trends_over(connection, [*reversed(before), number], Jobs("run", number))


def read_trends(path: Path | None, run_id: str) -> Trends | None:
    """As :func:`trends_of`, or None where there is no history to read: a report is made all the same."""
    if path is None or not path.is_file():
        return None
    try:
        found = trends_of(path, run_id)
    except HarnessError:
        return None
    return found if found.runs else None


def trends_over(connection: sqlite3.Connection, runs: Sequence[int], jobs: Jobs | None = None) -> Trends:
    """What became of `jobs`, or of all, in `runs`, which are in order of time."""
    where, values = jobs.where() if jobs else ("1", [])
    column = {run: index for index, run in enumerate(runs)}
    cases: dict[str, _Rows] = {}
    marks = ",".join("?" * len(runs))
    rows = connection.execute(
        "SELECT key, scenario, run, verdict, result.seconds, seed, device, accuracies, commit_id, changes, variant "
        "FROM result JOIN run ON run.id = result.run JOIN job ON job.id = result.job "
        f"WHERE result.run IN ({marks}) AND {where} ORDER BY job.id",
        [*runs, *values],
    )
    for row in rows:
        if row["key"] not in cases:
            cases[row["key"]] = _Rows(row["key"], row["scenario"], len(runs))
        cases[row["key"]].add(column[row["run"]], row)
    found = tuple(kept.trend() for kept in cases.values())
    return Trends(tuple(points(connection, runs)), _by_scenario(found), found, _faults_over(connection, column, jobs))


def _faults_over(connection: sqlite3.Connection, column: dict[int, int], jobs: Jobs | None) -> tuple[FaultTrend, ...]:
    where, values = jobs.where_fault() if jobs else ("1", [])
    marks = ",".join("?" * len(column))
    rows = connection.execute(
        f"SELECT * FROM fault WHERE run IN ({marks}) AND {where} ORDER BY scenario, name, case_id",
        [*column, *values],
    )
    found: dict[tuple[str, str, str], list[sqlite3.Row | None]] = {}
    for row in rows:
        identity = (row["name"], row["case_id"], row["scenario"])
        found.setdefault(identity, [None] * len(column))[column[row["run"]]] = row
    return tuple(
        FaultTrend(
            *identity,
            outcomes="".join(ABSENT if row is None else "ny"[row["caught"]] for row in kept),
            seconds=tuple(None if row is None else row["seconds"] for row in kept),
        )
        for identity, kept in found.items()
    )


def durations(path: Path, keys: Iterable[str], *, device: str | None = None) -> dict[str, float]:
    """The seconds that each job usually takes: the median of its newest 20 results, on `device` if one is given.

    Jobs that never ran to an end are left out, so that a caller may tell them from quick ones. Raises InputError when
    the history cannot be read.
    """
    found = {}
    with opened(path) as connection:
        for key in keys:
            rows = connection.execute(
                "SELECT seconds FROM result WHERE job = (SELECT id FROM job WHERE key = ?1) "
                "AND verdict NOT IN ('skip', 'error') AND (?2 IS NULL OR device = ?2) ORDER BY run DESC LIMIT ?3",
                (key, device, NUM_DURATIONS),
            ).fetchall()
            if rows:
                found[key] = statistics.median(row["seconds"] for row in rows)
    return found


class _Rows:
    """Collects the results of one job."""

    def __init__(self, key: str, scenario: str, num_runs: int) -> None:
        self._key, self._scenario = key, scenario
        self._verdicts = [ABSENT] * num_runs
        self._seconds: list[float | None] = [None] * num_runs
        self._accuracies: list[float | None] = [None] * num_runs
        self._alike: dict[tuple[str | int, ...], list[str]] = {}

    def add(self, column: int, row: sqlite3.Row) -> None:
        verdict = row["verdict"]
        self._verdicts[column] = LETTERS[verdict]
        if verdict == "skip":
            return
        self._seconds[column] = row["seconds"]
        self._accuracies[column] = min(numbers(row["accuracies"]), default=None)
        # Without a commit nobody knows whether the code was the same.
        if row["commit_id"]:
            same = (row["commit_id"], row["changes"], row["variant"], row["seed"], row["device"])
            self._alike.setdefault(same, []).append(verdict)

    def trend(self) -> CaseTrend:
        return CaseTrend(
            self._key, self._scenario, "".join(self._verdicts), tuple(self._seconds), tuple(self._accuracies),
            flakiness(self._alike.values()),
        )  # fmt: skip


def flakiness(alike: Iterable[Sequence[str]]) -> Flakiness | None:
    """Judge groups of verdicts of runs that were alike; None when no group is mixed."""
    groups = [group for group in alike if len(group) > 1]
    mixed = [group for group in groups if len(set(group)) > 1]
    if not mixed:
        return None
    counts = Counter(verdict for group in groups for verdict in group)
    return Flakiness(len(groups), len(mixed), sum(map(len, groups)), dict(sorted(counts.items())))


def _by_scenario(cases: Sequence[CaseTrend]) -> tuple[ScenarioTrend, ...]:
    groups: dict[str, list[CaseTrend]] = {}
    for case in cases:
        groups.setdefault(case.scenario, []).append(case)
    return tuple(_together(name, group) for name, group in groups.items())


def _together(scenario: str, cases: Sequence[CaseTrend]) -> ScenarioTrend:
    columns = ["".join(letters) for letters in zip(*(case.verdicts for case in cases), strict=True)]
    seconds = [_known(column) for column in zip(*(case.seconds for case in cases), strict=True)]
    accuracies = [_known(column) for column in zip(*(case.accuracies for case in cases), strict=True)]
    return ScenarioTrend(
        scenario=scenario,
        num_passed=tuple(column.count("p") for column in columns),
        num_failed=tuple(sum(column.count(letter) for letter in "fce") for column in columns),
        num_skipped=tuple(column.count("s") for column in columns),
        seconds=tuple(round(sum(known), 3) if known else None for known in seconds),
        accuracies=tuple(min(known, default=None) for known in accuracies),
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _flaky_first(case: CaseTrend) -> tuple[float, str]:
    return (-(case.flaky.share if case.flaky else 0.0), case.key)
