"""One run into the history: in one transaction, and in the place of what was known of that run before."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from harness.store.history.database import transaction
from harness.store.history.entry import RunEntry

_RUN = """INSERT INTO run
    (run_id, started, seconds, command, commit_id, branch, changes, variant, folder, num_planned)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (run_id) DO UPDATE SET started = excluded.started, seconds = excluded.seconds,
        command = excluded.command, commit_id = excluded.commit_id, branch = excluded.branch,
        changes = excluded.changes, variant = excluded.variant, folder = excluded.folder,
        num_planned = excluded.num_planned"""
_RESULT = """INSERT OR REPLACE INTO result
    (job, run, verdict, seconds, seed, device, note, oracles, blamed, accuracies)
    VALUES ((SELECT id FROM job WHERE key = ?), ?, ?, ?, ?, ?, (SELECT id FROM note WHERE text = ?), ?, ?, ?)"""
_FAULT = """INSERT OR REPLACE INTO fault
    (run, name, scenario, case_id, caught, seconds, note, oracles, blamed, accuracies)
    VALUES (?, ?, ?, ?, ?, ?, (SELECT id FROM note WHERE text = ?), ?, ?, ?)"""


def write_run(connection: sqlite3.Connection, entry: RunEntry) -> None:
    """Store `entry`; a second time it replaces the first, so that a run counts once however often it is written.

    A process killed inside leaves the history as it was before.
    """
    source = entry.source
    with transaction(connection):
        connection.execute(
            _RUN,
            (
                entry.run_id, entry.started, entry.seconds, entry.command, source.commit, source.branch,
                source.changes, entry.variant, entry.folder, entry.num_planned,
            ),
        )  # fmt: skip
        (run,) = connection.execute("SELECT id FROM run WHERE run_id = ?", (entry.run_id,)).fetchone()
        connection.execute("DELETE FROM result WHERE run = ?", (run,))
        connection.execute("DELETE FROM fault WHERE run = ?", (run,))
        _write_names(connection, entry)
        connection.executemany(
            _RESULT,
            (
                (
                    case.key, run, case.verdict, case.seconds, case.seed, case.device, case.note,
                    ",".join(case.oracles), ",".join(case.blamed), _numbers(case.accuracies),
                )
                for case in entry.cases
            ),
        )  # fmt: skip
        connection.executemany(
            _FAULT,
            (
                (
                    run, fault.fault, fault.scenario, fault.case, fault.caught, fault.seconds, fault.note,
                    ",".join(fault.by), ",".join(fault.blamed), _numbers(fault.accuracies),
                )
                for fault in entry.faults
            ),
        )  # fmt: skip


def _write_names(connection: sqlite3.Connection, entry: RunEntry) -> None:
    connection.executemany(
        "INSERT INTO job (key, scenario) VALUES (?, ?) ON CONFLICT (key) DO NOTHING",
        ((case.key, case.scenario) for case in entry.cases),
    )
    notes = {case.note for case in entry.cases} | {fault.note for fault in entry.faults}
    connection.executemany(
        "INSERT INTO note (text) VALUES (?) ON CONFLICT (text) DO NOTHING", ((note,) for note in sorted(notes) if note)
    )


def _numbers(accuracies: Sequence[float]) -> str | None:
    return json.dumps(list(accuracies), allow_nan=False) if accuracies else None
