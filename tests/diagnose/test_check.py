"""A script is believed only when it fails with its bug, for its bug, and passes without."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from harness.diagnose.script.code import MARKER
from harness.diagnose.script.export import Check, check, run
from tests.waiting import HANG_SECONDS


@pytest.mark.parametrize(
    ("line", "fails"),
    [
        ("assert False, 'nan'", True),
        ("x = 1", False),
        ("undefined_name", False),
        ("import harness", False),
        ("import no_such_module", False),
        ("raise ValueError(1)", False),
    ],
)
def test_only_a_failed_assertion_is_the_bug_of_a_case_that_failed(line: str, fails: bool) -> None:
    done = check(f"x = 0\n{line}{MARKER}\n")
    assert done.fails_with is fails and done.without_bug.passes and done.holds is fails
    assert done.sentence.startswith(
        "fails with the bug: yes" if fails else "fails with the bug: no ("
    )


def test_the_assertion_counts_in_a_process_of_torch_distributed_too() -> None:
    # It writes its rank before each line, and a warning after the last.
    printed = r"[rank0]: AssertionError: 3 of 8\n[rank0]:[W1123] was not called\n"
    done = check(f"import sys\nsys.stderr.write('{printed}'); sys.exit(1){MARKER}\n")
    assert done.holds


@pytest.mark.parametrize(
    ("line", "fails"),
    [("raise ValueError(1)", True), ("import os; os.abort()", True), ("y", False)],
)
def test_an_error_or_a_signal_is_the_bug_of_a_case_that_crashed(line: str, fails: bool) -> None:
    assert check(f"x = 0\n{line}{MARKER}\n", may_crash=True).holds is fails


def test_a_script_that_fails_without_its_bug_too_shows_nothing() -> None:
    done = check(f"x = 1{MARKER}\nassert False, 'always'\n")
    assert not done.holds and not done.without_bug.passes


def test_a_script_finds_packages_of_the_python_path_but_not_this_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Engines and their torch are often unpacked into folders that only PYTHONPATH names.
    (tmp_path / "engine_elsewhere.py").write_text("answer = 1\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), *sys.path)))
    assert check(
        f"import engine_elsewhere\nx = 1\nx = 2{MARKER}\nassert x == engine_elsewhere.answer\n"
    ).holds
    assert not check(f"x = 0\nimport harness{MARKER}\n").fails_with


def test_a_script_that_does_not_end_is_ended(tmp_path: Path) -> None:
    endless, short = tmp_path / "endless.py", tmp_path / "short.py"
    endless.write_text("while True: pass\n")
    short.write_text("x = 0\n")
    # Only the script that never ends has a short limit: on a busy machine the other one may need
    # longer than that to start.
    done = Check(run(endless, seconds=1), run(short, seconds=HANG_SECONDS), may_crash=False)
    assert not done.holds and done.late == "with the bug"
    assert done.sentence == "fails with the bug: no (it did not end in time); passes without: yes"


def test_a_test_file_without_tests_shows_nothing() -> None:
    assert not check(f"x = 0\nassert True{MARKER}\n", is_pytest=True).holds


def test_a_test_file_is_judged_by_its_tests() -> None:
    text = f"def test_it():\n    x = 1\n    x = 2{MARKER}\n    assert x == 1\n"
    assert check(text, is_pytest=True).holds
