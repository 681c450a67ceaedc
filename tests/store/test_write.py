"""A run is in the history once or not at all, whoever else writes and whoever is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from harness.store.history.database import opened
from harness.store.history.entry import CaseEntry, FaultEntry, RunEntry, write_run
from harness.store.history.runs import newest, number_of, read_run
from harness.store.source import Source

ROOT = Path(__file__).parents[2]
MakeRun = Callable[..., RunEntry]
Fill = Callable[..., Path]

WRITER = """
import sys
from pathlib import Path
from harness.store.history.database import opened
from harness.store.history.entry import CaseEntry, RunEntry
from harness.store.history.entry import write_run

path, name, count, num_cases = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
cases = tuple(CaseEntry(f"a[x={index}]", "a", "pass", 0.1) for index in range(num_cases))
for number in range(count):
    with opened(path, create=True) as connection:
        write_run(connection, RunEntry(f"{name}-{number}", "2026-01-01T00:00:00+00:00", cases=cases))
    print(f"{name}-{number}", flush=True)
"""
DYING_WRITER = """
import os, signal, sys
from pathlib import Path
from harness.store.history.database import opened
from harness.store.history.entry import CaseEntry, RunEntry
from harness.store.history.entry import write_run

cases = tuple(CaseEntry(f"a[x={index}]", "a", "pass", 0.1) for index in range(300))
with opened(Path(sys.argv[1]), create=True) as connection:
    seen = []
    def count(statement):
        seen.append(statement.startswith("INSERT OR REPLACE INTO result"))
        if sum(seen) == 150:
            os.kill(os.getpid(), signal.SIGKILL)
    connection.set_trace_callback(count)
    write_run(connection, RunEntry(sys.argv[2], "2026-01-01T00:00:00+00:00", seconds=9.0, cases=cases))
"""


def start(code: str, *words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)], env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_what_is_read_is_what_was_written(history: Path) -> None:
    run = RunEntry(
        "run-1", "2026-01-01T00:00:00+00:00", 12.5, "mla-harness run", Source(commit="c", branch="b", changes="d"),
        "v", "/somewhere", 3,
        (
            CaseEntry("a[x=1]", "a", "fail", 0.5, 2**31 - 1, "cuda", "it's \u2028", ("finite", "sentinel"), ("lse",)),
            CaseEntry("m", "m", "pass", 1.0, accuracies=(1.0, 0.5625)),
        ),
        (FaultEntry("kv.tail", "a", "a[x=1]", True, 2.0, "", ("finite",), ("kv.tail", "lse"), (0.0,)),),
    )  # fmt: skip
    with opened(history, create=True) as connection:
        write_run(connection, run)
        assert read_run(connection, newest(connection) or 0) == run


def test_a_run_written_twice_counts_once_and_the_later_holds(filled: Fill, make_run: MakeRun) -> None:
    first = make_run(1, {"a": "fail", "b": "pass"})
    path = filled(first, make_run(2, {"a": "pass"}), replace(make_run(1, {"a": "pass"}), seconds=3.0))
    with opened(path) as connection:
        assert connection.execute("SELECT count(*) FROM run").fetchone()[0] == 2
        again = read_run(connection, number_of(connection, "run-0001") or 0)
    assert [(case.key, case.verdict) for case in again.cases] == [("a", "pass")] and again.seconds == 3.0


def test_several_processes_write_to_a_history_that_none_of_them_finds_there(history: Path) -> None:
    writers = [start(WRITER, history, name, 8, 40) for name in "abcd"]
    for writer in writers:
        _, trouble = writer.communicate(timeout=120)
        assert writer.returncode == 0, trouble
    with opened(history) as connection:
        runs = connection.execute("SELECT run.id, count(*) FROM run JOIN result ON result.run = run.id GROUP BY run.id")
        assert [count for _, count in runs] == [40] * 32
        assert connection.execute("SELECT count(*) FROM job").fetchone()[0] == 40


def test_a_writer_killed_in_the_middle_of_a_run_leaves_the_history_as_it_was(filled: Fill, make_run: MakeRun) -> None:
    before = make_run(1, {"a[x=1]": "pass"})
    path = filled(before)
    for name in ("run-0002", "run-0001"):
        died = start(DYING_WRITER, path, name)
        died.communicate(timeout=60)
        assert died.returncode == -signal.SIGKILL
        with opened(path) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
            assert [row[0] for row in connection.execute("SELECT run_id FROM run")] == ["run-0001"]
            assert read_run(connection, newest(connection) or 0) == before, "a run is never half replaced"
    filled(make_run(3, {"a[x=1]": "pass"}))


def test_writers_killed_at_any_time_lose_no_run_that_they_had_written(history: Path) -> None:
    told: set[str] = set()
    for turn in range(4):
        with contextlib.ExitStack() as open_writers:
            writers = [open_writers.enter_context(start(WRITER, history, f"{turn}{name}", 999, 60)) for name in "ab"]
            # On a busy machine a writer takes long to start; from its first run on it does nothing but write.
            said = [writer.stdout.readline() for writer in writers if writer.stdout]
            time.sleep(0.05 + 0.03 * turn)
            for writer in writers:
                writer.kill()
            said += [writer.stdout.read() for writer in writers if writer.stdout]
        assert all(line.endswith("\n") for line in said[:2]), "both writers came to write"
        told |= {line for part in said for line in part.split("\n")[:-1] if line}
    with opened(history) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        sizes = connection.execute("SELECT run_id, count(*) FROM run JOIN result ON run = run.id GROUP BY run.id")
        found = dict(map(tuple, sizes))
    assert told <= found.keys() and set(found.values()) == {60}
    # At most the run that a killed writer was telling of is there untold.
    assert len(found) - len(told) <= 8


def test_the_file_is_plain_sqlite_for_other_tools(filled: Fill, make_run: MakeRun) -> None:
    path = filled(make_run(1, {"a": "pass"}), make_run(2, {"a": "fail"}))
    other = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    query = "SELECT run_id, verdict FROM result JOIN run ON run.id = run JOIN job ON job.id = job WHERE key = 'a'"
    assert other.execute(query).fetchall() == [("run-0001", "pass"), ("run-0002", "fail")]
    other.close()
