"""Which code was under test: git's answer, and what stands in for it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from harness.core.cases import Case, Job
from harness.core.records import CaseResult, Verdict
from harness.report.run_view import RunView
from harness.report.write import write_reports
from harness.store.run_folder import RunStore
from harness.store.source import Source, differences, read_source


def git(folder: Path, *words: str) -> str:
    told = subprocess.run(
        ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@example.org", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    return told.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit on branch `topic`, and no file that is not committed."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "mine"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "topic")
    (folder / "kernel.py").write_text("x = 1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "one")
    return folder


def test_a_clean_repository_is_its_commit_and_branch(repository: Path) -> None:
    assert read_source(repository, {}) == Source(
        commit=git(repository, "rev-parse", "HEAD"), branch="topic"
    )


def test_what_is_not_committed_is_seen_and_equal_only_to_itself(repository: Path) -> None:
    (repository / "kernel.py").write_text("x = 2\n")
    edited = read_source(repository, {})
    assert edited.changes and edited.short_commit.endswith("+")
    (repository / "new.py").write_text("y = 1\n")
    with_file = read_source(repository, {})
    (repository / "new.py").write_text("y = 2\n")
    assert len({edited.changes, with_file.changes, read_source(repository, {}).changes}) == 3
    (repository / "new.py").unlink()
    assert read_source(repository, {}) == edited


def new_run(root: Path) -> Path:
    """A run folder below `root`, as the store makes it, with some of its reports."""
    job = Job(key="a", case=Case(id="a", scenario="a", system="kernel", op="write_kv"))
    store = RunStore.create(root, [job], command="x")
    store.add(CaseResult(key="a", id="a", scenario="a", verdict=Verdict.PASS))
    (store.path / "accuracy" / "a").mkdir(parents=True)
    for name in ("report.html", "accuracy/a/accuracy.jsonl"):
        (store.path / name).write_text("written by a run")
    return store.path


@pytest.mark.parametrize("where", [".", "shards", "my code/out", "out/of/some"])
def test_the_output_of_runs_is_no_change_of_the_code_wherever_it_lies(
    repository: Path, where: str
) -> None:
    new_run(repository / where)
    assert read_source(repository, {}) == Source(
        commit=git(repository, "rev-parse", "HEAD"), branch="topic"
    )
    (repository / where / "kernel.py").write_text("beside a run\n")
    assert list(read_source(repository, {}).files) == [str(Path(where) / "kernel.py")]


def test_a_summary_alone_and_a_run_that_is_written_now_are_output_too(repository: Path) -> None:
    run = new_run(repository / "kept")
    write_reports(RunView(RunStore.open(run)))
    (run / "run.json").unlink()
    assert read_source(repository, {}).changes == ""
    (run / "summary.json").rename(run / ".run.json.5x7")
    assert read_source(repository, {}).changes == ""


def test_a_folder_that_only_has_a_file_of_such_a_name_is_code(repository: Path) -> None:
    for name, text in {"one": "{}", "two": '{"scripts": {"run_id": "x"}}'}.items():
        (repository / name).mkdir()
        (repository / name / "run.json").write_text(text)
    assert list(read_source(repository, {}).files) == ["one/run.json", "two/run.json"]
    os.mkfifo(repository / "one" / "summary.json")
    assert len(read_source(repository, {}).files) == 2, "a pipe is not waited for"


def test_a_run_that_was_committed_may_be_reported_again(repository: Path) -> None:
    run = new_run(repository / "accepted")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "accept these failures")
    (run / "report.html").write_text("written again")
    assert read_source(repository, {}).changes == ""


def test_the_changed_files_are_named_and_equal_changes_are_equal(
    repository: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    git(repository, "clone", "-q", str(repository), str(other))
    for folder in (repository, other):
        (folder / "kernel.py").write_text("x = 2\n")
        (folder / "big.bin").write_bytes(bytes(9))
        (folder / "link").symlink_to("kernel.py")
    mine, theirs = read_source(repository, {}), read_source(other, {})
    assert list(mine.files) == ["big.bin", "kernel.py", "link"]
    assert mine.changes == theirs.changes and differences(mine, theirs) == []
    (other / "big.bin").write_bytes(bytes(8))
    (other / "kernel.py").chmod(0o755)
    theirs = read_source(other, {})
    assert mine.changes != theirs.changes and differences(mine, theirs) == ["big.bin", "kernel.py"]
    git(other, "commit", "-qam", "two")
    assert differences(mine, read_source(other, {}))[0].startswith("commit ")


def test_a_touched_file_is_no_change(repository: Path) -> None:
    os.utime(repository / "kernel.py", (1, 1))
    assert read_source(repository, {}).changes == ""


def test_flags_overrule_git_and_ci_fills_in_what_git_does_not_know(
    repository: Path, tmp_path: Path
) -> None:
    runner = {"GITHUB_SHA": "5ha", "GITHUB_REF_NAME": "12/merge", "GITHUB_HEAD_REF": "their-branch"}
    assert read_source(repository, runner).branch == "topic"
    git(repository, "checkout", "-q", "--detach")
    assert read_source(repository, runner).branch == "their-branch"
    assert read_source(repository, {}).branch == ""
    (repository / "kernel.py").write_text("x = 2\n")
    assert read_source(repository, {}, commit="beef", branch="b") == Source(
        commit="beef", branch="b"
    )
    outside = tmp_path / "outside"
    outside.mkdir()
    assert read_source(outside, {}) == Source()
    assert read_source(outside, runner) == Source(commit="5ha", branch="their-branch")


def test_a_machine_without_git_still_runs(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert read_source(repository, {}) == Source()


def test_no_program_that_a_repository_names_is_started(repository: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap.sh"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    trap.chmod(0o755)
    for name in ("diff.external", "core.fsmonitor", "diff.bad.textconv"):
        git(repository, "config", name, str(trap))
    (repository / ".gitattributes").write_text("*.py diff=bad\n")
    (repository / "kernel.py").write_text("x = 3\n")
    assert read_source(repository, {}).changes
    assert not (tmp_path / "sprung").exists()


def test_a_run_resumed_with_other_code_is_of_neither(tmp_path: Path) -> None:
    first, second = Source(commit="aaa", branch="b"), Source(commit="bbb", branch="b")
    store = RunStore.create(
        tmp_path,
        [Job(key="a", case=Case(id="a", scenario="a", system="kernel", op="write_kv"))],
        command="x",
    )
    store.note_source(first)
    assert RunStore.open(store.path).plan.source == first
    store.note_source(first)
    assert store.plan.source == first
    store.note_source(second)
    assert store.plan.source.commit == "aaa" and "bbb" in store.plan.source.changes


def test_a_run_of_unknown_code_does_not_become_one_of_the_code_it_is_resumed_with(
    tmp_path: Path,
) -> None:
    store = RunStore.create(
        tmp_path,
        [Job(key="a", case=Case(id="a", scenario="a", system="kernel", op="write_kv"))],
        command="x",
    )
    store.add(CaseResult(key="a", id="a", scenario="a", verdict=Verdict.PASS))
    store.note_source(Source(commit="aaa"))
    assert store.plan.source.commit == ""
