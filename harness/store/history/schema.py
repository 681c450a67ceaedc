"""The tables of the history, version by version.

To change the tables, append a tuple of statements to `MIGRATIONS` and never alter a released one. The number of tuples
is the version (`PRAGMA user_version`). An older file is migrated in one transaction when it is opened; a newer file is
refused.
"""

from __future__ import annotations

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
