"""Malformed files of every kind are refused with one line and exit code 2; files of an older
version open.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from .malformed_files import answer, every

OLDER = Path(__file__).parents[1] / "store" / "older"
Cli = Callable[..., tuple[int, str, str]]


def test_there_are_a_hundred_and_twenty_of_five_kinds() -> None:
    assert len(every()) >= 120
    assert {one.kind for one in every()} == {
        "scenario",
        "script",
        "plug-in",
        "baseline",
        "run folder",
    }


@pytest.mark.parametrize("one", every(), ids=lambda one: f"{one.kind}: {one.name}")
def test_it_is_refused_in_one_line(one, tmp_path) -> None:
    code, lines = answer(one, tmp_path)
    assert code == 2
    assert len(lines) == 1 and lines[0].startswith("mla-harness: ")
    assert "Traceback" not in lines[0] and "\x1b" not in lines[0]


def test_a_run_folder_of_an_older_version_is_shown_and_resumed(cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "older"
    shutil.copytree(OLDER, run)
    code, told, errors = cli("report", run, "--history", "none")
    assert (code, errors) == (0, "") and "6 pass" in told
    (run / "results.jsonl").write_text(
        "".join((run / "results.jsonl").read_text().splitlines(keepends=True)[:4])
    )
    code, told, _ = cli("run", "--resume", run, "--history", "none", "-n", "0")
    assert code == 0 and "6 pass" in told
