"""A full disk, or a run folder that is deleted, is one line with its path and exit code 3; what was
stored stays.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.core import files, stored
from harness.core.errors import NoRoomError
from tests.transcripts import Approved, lines_with

ROOT = Path(__file__).parents[2]
Cli = Callable[..., tuple[int, str, str]]
FULL = OSError(errno.ENOSPC, "No space left on device")
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def test_a_line_or_a_file_that_does_not_fit_is_refused_with_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    (tmp_path / "results.jsonl").symlink_to("/dev/full")
    with approved.raises(NoRoomError):
        stored.append_line(tmp_path / "results.jsonl", "{}")
    (tmp_path / "run.json").write_text("old")

    def sync(descriptor: int) -> None:
        raise FULL

    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(NoRoomError, match=rf"^{tmp_path}/run.json: "):
        files.write_atomic(tmp_path / "run.json", "new")
    assert (tmp_path / "run.json").read_text() == "old" and len(list(tmp_path.iterdir())) == 2


def test_a_run_on_a_full_disk_ends_in_one_line_keeps_its_results_and_goes_on(
    cli: Cli, scenarios: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    append, count = stored.append_line, 0

    def appended(path: Path, line: str) -> None:
        nonlocal count
        if (count := count + 1) > 2:
            path = path.with_name("full")
            path.symlink_to("/dev/full")
        append(path, line)

    monkeypatch.setattr("harness.store.run_folder.append_line", appended)
    code, _, err = cli(
        "run", "quantize", "--scenarios", scenarios, "--out", tmp_path / "runs", "-n", 1
    )
    (run,) = (tmp_path / "runs").iterdir()
    told = (
        f"{run}/full: No space left on device; make room; continue with: mla-harness run --resume"
        f" {run}\n"
    )
    assert (code, err) == (3, told)
    monkeypatch.undo()
    code, out, _ = cli("report", run)
    assert code == 0
    approved(lines_with(out, "2 pass, 2"))
    assert cli("run", "--resume", run, "-n", 1)[0] == 0


@pytest.mark.parametrize("last", [1, 3], ids=["in the middle", "after the last result"])
def test_a_run_folder_that_is_deleted_ends_the_run_in_one_line_and_is_not_made_again(
    cli: Cli, scenarios: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    append, lines = stored.append_line, []

    def appended(path: Path, line: str) -> None:
        append(path, line)
        lines.append(path)
        if len(lines) == last:
            shutil.rmtree(path.parent)

    monkeypatch.setattr("harness.store.run_folder.append_line", appended)
    code, _, err = cli(
        "run", "quantize", "--scenarios", scenarios, "--out", tmp_path / "runs", "-n", 1
    )
    how = "deleted or moved during the run; leave it in place, and run the command again"
    assert len(lines) == last and (code, err) == (3, f"mla-harness: {lines[0].parent}: {how}\n")
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize("words", ["--version", "list", "show fuzz"])
def test_a_full_output_is_one_line_and_a_reader_that_ends_is_no_error(
    words: str, approved: Approved
) -> None:
    command = [sys.executable, "-m", "harness.cli.main", *words.split()]
    environ = BUFFERED | {"PYTHONPATH": str(ROOT)}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, env=environ, check=False
        )
    assert done.returncode == 3
    approved(done.stderr)
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        command, stdout=writer, stderr=subprocess.PIPE, text=True, env=environ, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
