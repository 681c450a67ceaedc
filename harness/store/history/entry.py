"""What the history stores of one run, and how: in one transaction, replacing the run if it is there."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from harness.core.cases import Job
from harness.core.records import AccuracyRecord, Blame, CaseResult, FaultResult
from harness.store.history.database import transaction
from harness.store.mutants import score
from harness.store.run_folder import RunStore
from harness.store.source import Source

MAX_NOTE = 400
"""Characters kept of a reason; the run directory has all of it."""
MUTANTS = "mutants"
"""The name of the case with the kill rate of a selftest of mutants."""
CAUGHT, MISSED = "caught", "missed"
"""The verdicts of a fault."""
# A run that is written again keeps its number. Its results and faults are deleted with the row that is replaced.
_RUN = """INSERT OR REPLACE INTO run
    (id, run_id, started, seconds, command, commit_id, branch, changes, variant, folder, num_planned)
    VALUES ((SELECT id FROM run WHERE run_id = :run_id), :run_id, :started, :seconds, :command, :commit, :branch,
        :changes, :variant, :folder, :num_planned)"""
_JOB = "INSERT INTO job (key, scenario) VALUES (:key, :scenario) ON CONFLICT (key) DO NOTHING"
_NOTE = "INSERT INTO note (text) SELECT :note WHERE :note <> '' ON CONFLICT (text) DO NOTHING"
_RESULT = """INSERT OR REPLACE INTO result
    (job, run, verdict, seconds, seed, device, note, oracles, blamed, accuracies)
    SELECT job.id, run.id, :verdict, :seconds, :seed, :device, (SELECT id FROM note WHERE text = :note), :oracles,
        :blamed, :accuracies
    FROM job, run WHERE key = :key AND run_id = :run_id"""
_FAULT = """INSERT OR REPLACE INTO fault
    (run, name, scenario, case_id, caught, seconds, note, oracles, blamed, accuracies)
    SELECT id, :fault, :scenario, :case, :caught, :seconds, (SELECT id FROM note WHERE text = :note), :oracles,
        :blamed, :accuracies
    FROM run WHERE run_id = :run_id"""


@dataclass(frozen=True, slots=True)
class CaseEntry:
    """One finished job of a run."""

    key: str
    """The case id, or `id!fault` where a fault was injected."""
    scenario: str
    verdict: str
    seconds: float
    seed: int = 0
    device: str = "cpu"
    note: str = ""
    """Why it did not pass, in one line."""
    oracles: tuple[str, ...] = ()
    blamed: tuple[str, ...] = ()
    accuracies: tuple[float, ...] = ()
    """Accuracy by epoch, for a case that measures it."""

    @property
    def accuracy(self) -> float | None:
        """The lowest epoch. A mean would hide an epoch that collapsed."""
        return min(self.accuracies, default=None)


@dataclass(frozen=True, slots=True)
class FaultEntry:
    """The outcome of one injected fault."""

    fault: str
    scenario: str
    case: str
    caught: bool
    seconds: float = 0.0
    note: str = ""
    oracles: tuple[str, ...] = ()
    blamed: tuple[str, ...] = ()
    accuracies: tuple[float, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.case}!{self.fault}"

    @property
    def verdict(self) -> str:
        return CAUGHT if self.caught else MISSED

    @property
    def accuracy(self) -> None:
        """None: a fault is meant to lower accuracy, so its fall is no news."""


Entry = CaseEntry | FaultEntry


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One run. `variant` is a digest of the options and versions that decide outcomes besides case, code and seed."""

    run_id: str
    started: str
    seconds: float = 0.0
    command: str = ""
    source: Source = field(default_factory=Source)
    variant: str = ""
    folder: str = ""
    num_planned: int = 0
    cases: tuple[CaseEntry, ...] = ()
    faults: tuple[FaultEntry, ...] = ()

    @property
    def entries(self) -> tuple[Entry, ...]:
        return (*self.cases, *self.faults)

    @property
    def has_judged(self) -> bool:
        return bool(self.faults) or any(case.verdict not in ("skip", "error") for case in self.cases)


def entry_of(store: RunStore) -> RunEntry:
    """The entry of a run directory. Jobs that never ran count in `num_planned` only.

    Raises InputError when a file of the directory is damaged.
    """
    plan, blames, finished = store.plan, store.blames(), store.finished()
    jobs = [job for job in plan.jobs if job.key in finished]
    return RunEntry(
        run_id=plan.run_id,
        started=plan.started,
        seconds=plan.seconds,
        command=plan.command,
        source=plan.source,
        variant=_digest(plan.options, plan.environment),
        folder=str(store.path.resolve()),
        num_planned=len(plan.jobs),
        cases=(*(_case(job, finished[job.key], blames.get(job.key)) for job in jobs), *_score(store)),
        faults=tuple(_fault(fault) for fault in store.faults()),
    )


def _case(job: Job, result: CaseResult, blame: Blame | None) -> CaseEntry:
    note = result.reason or (result.findings[0].message if result.findings else "")
    return CaseEntry(
        key=result.key,
        scenario=result.scenario,
        verdict=result.verdict.value,
        seconds=result.seconds,
        seed=job.case.seed,
        device=job.device,
        note=_line(note),
        oracles=tuple(dict.fromkeys(finding.oracle for finding in result.findings)),
        blamed=blame.sites if blame else (),
        accuracies=_accuracies(result.accuracy),
    )


def _score(store: RunStore) -> tuple[CaseEntry, ...]:
    """The kill rate of the mutants as the accuracy of a case of its own; empty for a run without mutants."""
    if not (results := store.mutants()):
        return ()
    found = score(results)
    seed = int(store.plan.options.get("seed") or 0)
    return (
        CaseEntry(MUTANTS, MUTANTS, "pass", store.plan.seconds, seed, "cpu", found.statement, (), (), (found.rate,)),
    )


def _fault(fault: FaultResult) -> FaultEntry:
    same = ("fault", "scenario", "case", "caught", "seconds", "blamed")
    return FaultEntry(
        **{name: getattr(fault, name) for name in same},
        note=_line(fault.reason),
        oracles=fault.by,
        accuracies=_accuracies(fault.accuracy),
    )


def _accuracies(record: AccuracyRecord | None) -> tuple[float, ...]:
    return tuple(epoch.accuracy for epoch in record.epochs) if record else ()


def _line(text: str) -> str:
    """`text` on one line. SQLite refuses lone surrogates, so they become question marks."""
    return " ".join(text.split())[:MAX_NOTE].encode(errors="replace").decode()


def _digest(options: dict[str, Any], environment: dict[str, Any]) -> str:
    # The address of a cluster differs each time and decides nothing.
    versions = {name: value for name, value in environment.items() if name != "cluster"}
    text = json.dumps([options, versions], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_run(connection: sqlite3.Connection, entry: RunEntry) -> None:
    """Store `entry`, replacing a former entry of the run. A kill leaves the history as it was."""
    cases, faults = _rows(entry.run_id, entry.cases), _rows(entry.run_id, entry.faults)
    with transaction(connection):
        connection.execute(_RUN, asdict(replace(entry, cases=(), faults=())) | entry.source.model_dump())
        connection.executemany(_JOB, cases)
        connection.executemany(_NOTE, cases + faults)
        connection.executemany(_RESULT, cases)
        connection.executemany(_FAULT, faults)


def _rows(run_id: str, entries: Sequence[Entry]) -> list[dict[str, object]]:
    """The values of each entry's row by name; lists become text."""
    return [
        asdict(one)
        | {
            "run_id": run_id,
            "oracles": ",".join(one.oracles),
            "blamed": ",".join(one.blamed),
            "accuracies": json.dumps(one.accuracies, allow_nan=False) if one.accuracies else None,
        }
        for one in entries
    ]
