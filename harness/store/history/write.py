"""Write one run to the history in one transaction, replacing the run if it is there."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, replace

from harness.store.history.database import transaction
from harness.store.history.entry import Entry, RunEntry

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
