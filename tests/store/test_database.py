"""The file of the history: made, refused in one line, brought up to a new version, never half of one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.core.errors import InputError
from harness.store.history import database
from harness.store.history.database import APPLICATION_ID, MIGRATIONS, opened
from harness.store.history.entry import RunEntry
from harness.store.history.runs import newest, read_run

MakeRun = Callable[..., RunEntry]
Fill = Callable[..., Path]


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught, opened(path) as connection:
        newest(connection)
    told = str(caught.value)
    assert told.startswith(str(path)) and "\n" not in told
    return told


def test_a_new_history_is_in_write_ahead_mode_and_says_whose_it_is(history: Path) -> None:
    with opened(history, create=True) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
        assert connection.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS)


def test_reading_does_not_make_a_history(history: Path) -> None:
    assert "no history there yet" in refused(history)
    assert not history.exists()


@pytest.mark.parametrize("content", [b"name: decode-kernel\n" * 400, b"\x00\x01" * 4096])
def test_a_file_that_is_no_database_is_refused_and_left_alone(history: Path, content: bytes) -> None:
    history.write_bytes(content)
    assert "not a history, or damaged" in refused(history)
    with pytest.raises(InputError, match="rebuild"), opened(history, create=True):
        pass
    assert history.read_bytes() == content


def test_a_database_of_another_program_is_refused_and_left_alone(history: Path) -> None:
    with sqlite3.connect(history) as other:
        other.execute("CREATE TABLE run (title TEXT)")
    other.close()
    before = history.read_bytes()
    assert "another program" in refused(history)
    with pytest.raises(InputError, match="another program"), opened(history, create=True):
        pass
    assert history.read_bytes() == before


def test_a_history_that_lost_its_end_is_refused_in_one_line(filled: Fill, make_run: MakeRun, history: Path) -> None:
    filled(*(make_run(number, {f"a[x={index}]": "pass" for index in range(200)}) for number in range(20)))
    whole = history.read_bytes()
    history.write_bytes(whole[: len(whole) // 3])
    told = ""
    try:
        with opened(history) as connection:
            read_run(connection, newest(connection) or 0)
            connection.execute("SELECT count(*), sum(seconds) FROM result").fetchone()
    except InputError as error:
        told = str(error)
    assert "damaged" in told


def test_a_history_of_a_newer_version_is_refused(history: Path) -> None:
    with opened(history, create=True) as connection:
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    assert "newer mla-harness" in refused(history)


def test_a_history_whose_tables_were_changed_is_refused_in_one_line(history: Path) -> None:
    with opened(history, create=True) as connection:
        connection.execute("DROP TABLE result")
        connection.execute("DROP TABLE run")
    assert "its tables are damaged" in refused(history)


def test_a_folder_in_the_place_of_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be used"), opened(tmp_path, create=True):
        pass


def test_a_parent_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "reports").write_text("")
    with pytest.raises(InputError, match="cannot be made"), opened(tmp_path / "reports" / "h.sqlite", create=True):
        pass


def test_an_older_version_keeps_its_runs_when_it_is_brought_up(
    filled: Fill, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = filled(make_run(1, {"a": "pass"}))
    added = ("ALTER TABLE run ADD COLUMN machine TEXT NOT NULL DEFAULT 'unknown'",)
    monkeypatch.setattr(database, "MIGRATIONS", (*MIGRATIONS, added))
    with opened(path) as connection:
        (row,) = connection.execute("SELECT run_id, machine FROM run").fetchall()
        assert tuple(row) == ("run-0001", "unknown")
        assert connection.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS) + 1


def test_a_step_to_a_new_version_that_fails_half_way_leaves_the_old_one(
    filled: Fill, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = filled(make_run(1, {"a": "pass"}))
    broken = ("ALTER TABLE run ADD COLUMN machine TEXT", "ALTER TABLE nowhere ADD COLUMN machine TEXT")
    with monkeypatch.context() as patched:
        patched.setattr(database, "MIGRATIONS", (*MIGRATIONS, broken))
        assert "nowhere" in refused(path)
    with opened(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS)
        columns = [name for _, name, *_ in connection.execute("PRAGMA table_info(run)")]
        assert "commit_id" in columns and "machine" not in columns


def test_a_history_that_stays_locked_is_told_in_one_line(
    filled: Fill, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = filled(make_run(1, {"a": "pass"}))
    monkeypatch.setattr(database, "LOCK_SECONDS", 0.1)
    with opened(path) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with opened(path) as reader:
            assert newest(reader) is not None, "a reader does not wait for a writer"
        with pytest.raises(InputError, match="has locked it"), opened(path) as writer:
            writer.execute("BEGIN IMMEDIATE")
        holder.execute("ROLLBACK")
