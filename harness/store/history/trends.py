"""Verdicts, accuracy and time of the same cases from run to run, and flaky cases."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.errors import HarnessError
from harness.core.extras import pandas as pd
from harness.store.history.database import opened, query
from harness.store.history.runs import RunPoint, cases_of, earlier, faults_of, number_of, points, read_run

LETTERS = {"pass": "p", "fail": "f", "crash": "c", "skip": "s", "error": "e", "known": "k"}
ABSENT = "."
"""In place of a verdict: the case was not in that run."""
NUM_RUNS = 30
NUM_DURATIONS = 20


@dataclass(frozen=True, slots=True)
class Flakiness:
    """How often a case had different verdicts with the same code, seed, device, options and versions."""

    num_groups: int
    """Groups of at least two runs that are alike in all of these."""
    num_mixed: int
    """Groups with different verdicts."""
    num_runs: int
    """Runs in these groups."""
    verdicts: dict[str, int]

    @property
    def share(self) -> float:
        return self.num_mixed / self.num_groups


@dataclass(frozen=True, slots=True)
class CaseTrend:
    """One case. `verdicts`, `seconds` and `accuracies` have an entry for each run of the :class:`Trends`."""

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
    num_known: tuple[int, ...] = ()
    """Failed as known; empty where no run has such a case."""


@dataclass(frozen=True, slots=True)
class FaultTrend:
    """A fault injected in one case; everything is aligned with the runs."""

    fault: str
    case: str
    scenario: str
    outcomes: str
    """`y` caught, `n` not caught, a dot for a run without the fault."""
    seconds: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Trends:
    """Runs, oldest first, and the cases and faults in them."""

    runs: tuple[RunPoint, ...]
    scenarios: tuple[ScenarioTrend, ...]
    cases: tuple[CaseTrend, ...]
    faults: tuple[FaultTrend, ...] = ()

    @property
    def flaky(self) -> tuple[CaseTrend, ...]:
        """The flaky cases, worst first."""
        ranked = [(-case.flaky.share, case.key, case) for case in self.cases if case.flaky]
        return tuple(case for *_, case in sorted(ranked, key=lambda one: one[:2]))


def read_trends(path: Path | None, run_id: str, *, num_runs: int = NUM_RUNS) -> Trends | None:
    """The cases of one run over the earlier runs that have some of them, up to and with that run.

    None without a readable history that has the run: a report does not need one.
    """
    if path is None or not path.is_file():
        return None
    with suppress(HarnessError), opened(path) as connection:
        number = number_of(connection, run_id)
        if number is not None:
            before = earlier(connection, read_run(connection, number), limit=num_runs - 1)
            return trends_over(connection, [*reversed(before), number], of_last=True)
    return None


def trends_over(
    connection: sqlite3.Connection, runs: Sequence[int], name: str = "", *, of_last: bool = False
) -> Trends:
    """The cases and faults over `runs`, which are in order of time.

    `name` selects one scenario or case, `of_last` the cases and faults of the last run.
    """
    cases, faults = cases_of(connection, runs, name), faults_of(connection, runs, name)
    if of_last:
        cases, faults = (table[table["key"].isin(table["key"][table["run"] == runs[-1]])] for table in (cases, faults))
    lowest = [min(json.loads(epochs), default=None) for epochs in cases["accuracies"]]
    cases = cases.assign(letter=cases["verdict"].map(LETTERS), accuracy=pd.Series(lowest, cases.index, dtype=float))
    # A skipped case took no time and measured nothing.
    cases.loc[cases["verdict"] == "skip", ["seconds", "accuracy"]] = None
    return Trends(
        runs=points(connection, runs),
        scenarios=_scenario_trends(cases, runs),
        cases=_case_trends(cases, runs),
        faults=_fault_trends(faults, runs),
    )


def durations(path: Path, keys: Iterable[str]) -> dict[str, float]:
    """The median seconds of the newest 20 results of each job.

    Jobs without a judged result are left out. Raises InputError when the history cannot be read.
    """
    with opened(path) as connection:
        found = query(
            connection,
            """SELECT key, seconds FROM result JOIN job ON job.id = job
            WHERE key IN (SELECT value FROM json_each(:keys)) AND run IN (
                SELECT run FROM result WHERE job = job.id AND verdict NOT IN ('skip', 'error')
                ORDER BY run DESC LIMIT :num)""",
            keys=list(keys),
            num=NUM_DURATIONS,
        )
    medians: dict[str, float] = found.groupby("key")["seconds"].median().to_dict()
    return medians


def _scenario_trends(cases: pd.DataFrame, runs: Sequence[int]) -> tuple[ScenarioTrend, ...]:
    counted = {
        "num_passed": ["pass"],
        "num_failed": ["fail", "crash", "error"],
        "num_skipped": ["skip"],
        "num_known": ["known"],
    }
    cases = cases.assign(
        first_job=cases.groupby("scenario")["job"].transform("min"),
        **{name: cases["verdict"].isin(verdicts) for name, verdicts in counted.items()},
    )
    groups = cases.groupby(["first_job", "scenario", "run"])
    sums = groups[[*counted, "seconds"]].sum(min_count=1).assign(accuracy=groups["accuracy"].min()).reset_index()
    sums["seconds"] = [round(seconds, 3) for seconds in sums["seconds"]]
    counts = {name: _by_run(sums, ["first_job", "scenario"], name, runs).fillna(0).astype(int) for name in counted}
    seconds, accuracies = (_by_run(sums, ["first_job", "scenario"], name, runs) for name in ("seconds", "accuracy"))
    names = seconds.index.get_level_values("scenario")
    known = [row if any(row) else () for row in _tuples(counts.pop("num_known"))]
    return tuple(
        map(ScenarioTrend, names, *map(_tuples, counts.values()), _tuples(seconds), _tuples(accuracies), known)
    )


def _case_trends(cases: pd.DataFrame, runs: Sequence[int]) -> tuple[CaseTrend, ...]:
    identity = ["job", "key", "scenario"]
    letters, seconds, accuracies = (_by_run(cases, identity, name, runs) for name in ("letter", "seconds", "accuracy"))
    keys, scenarios = (letters.index.get_level_values(name) for name in ("key", "scenario"))
    flaky = map(_flakiness(cases).get, keys)
    return tuple(map(CaseTrend, keys, scenarios, _joined(letters), _tuples(seconds), _tuples(accuracies), flaky))


def _fault_trends(faults: pd.DataFrame, runs: Sequence[int]) -> tuple[FaultTrend, ...]:
    identity = ["scenario", "fault", "case"]
    faults = faults.assign(letter=faults["caught"].map({True: "y", False: "n"}))
    letters, seconds = (_by_run(faults, identity, name, runs) for name in ("letter", "seconds"))
    scenarios, names, cases = (letters.index.get_level_values(name) for name in identity)
    return tuple(map(FaultTrend, names, cases, scenarios, _joined(letters), _tuples(seconds)))


def _flakiness(cases: pd.DataFrame) -> dict[str, Flakiness]:
    """The flaky cases by key."""
    alike = ["key", "commit_id", "changes", "variant", "seed", "device"]
    # Without a commit it is unknown whether the code was the same.
    known = cases[(cases["verdict"] != "skip") & (cases["commit_id"] != "")]
    # A row for each group of runs that were alike, a column for each verdict.
    groups = known.groupby([*alike, "verdict"]).size().unstack(fill_value=0)
    groups = groups[groups.sum(axis=1) > 1]
    is_mixed = (groups > 0).sum(axis=1) > 1
    found = {}
    for key, mixed in is_mixed[is_mixed.groupby("key").transform("any")].groupby("key"):
        counts = groups.loc[mixed.index].sum()
        found[key] = Flakiness(len(mixed), int(mixed.sum()), int(counts.sum()), counts[counts > 0].to_dict())
    return found


def _by_run(table: pd.DataFrame, identity: list[str], value: str, runs: Sequence[int]) -> pd.DataFrame:
    """`value` in a row for each `identity` and a column for each run."""
    return table.pivot(index=identity, columns="run", values=value).reindex(columns=runs)


def _joined(letters: pd.DataFrame) -> list[str]:
    return ["".join(row) for row in _tuples(letters, ABSENT)]


def _tuples(table: pd.DataFrame, absent: str | None = None) -> list[tuple[Any, ...]]:
    """The rows, with `absent` where a run has no value."""
    return [tuple(row) for row in table.to_numpy(dtype=object, na_value=absent)]
