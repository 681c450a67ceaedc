"""Trial changes: each patch applies, one that does not is named with its file, the count is right,
and a trial tells a change that does not work or that nothing judges.
"""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from trust.changes import __main__ as program
from trust.changes.trials import (
    CODE_PAGES,
    ROOT,
    Change,
    DoesNotApply,
    Trial,
    Wrong,
    apply,
    changes,
    code_pages,
    files_of,
    make_wrong,
    read,
    tried,
    why_not_applied,
)

NAMES = ("engine", "fault", "kernel", "op", "oracle", "release", "site")
HEAD = """what: a second line
before: 5
shows: python -c 'raise SystemExit(open("text.txt").read().count("wrong"))'
wrong: {file: text.txt, old: second, new: wrong}
"""
DIFF = """diff --git a/new.txt b/new.txt
new file mode 100644
index 0000000..ce01362
--- /dev/null
+++ b/new.txt
@@ -0,0 +1 @@
+hello
diff --git a/text.txt b/text.txt
index e69de29..d95f3ad 100644
--- a/text.txt
+++ b/text.txt
@@ -1 +1,2 @@
 first
+second
"""


@pytest.fixture
def change(tmp_path: Path) -> Change:
    """A change that adds a file and a line of `text.txt`."""
    (tmp_path / "toy.patch").write_text(HEAD + DIFF, encoding="utf-8")
    return read(tmp_path / "toy.patch")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder that the patch of `change` fits."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "text.txt").write_text("first\n", encoding="utf-8")
    return folder


def test_there_is_a_change_of_each_kind() -> None:
    assert tuple(changes()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_patch_applies_to_this_checkout(name: str) -> None:
    assert why_not_applied(changes()[name], ROOT) == ""


def test_new_and_edited_files_are_counted(change: Change) -> None:
    assert (change.made, change.edited) == (("new.txt",), ("text.txt",))
    assert files_of(DIFF) == (("new.txt",), ("text.txt",))


def test_a_change_is_made_in_a_folder_and_its_error_planted(change: Change, checkout: Path) -> None:
    apply(change, checkout)
    assert (checkout / "new.txt").read_text() == "hello\n"
    make_wrong(change.wrong, checkout)
    assert (checkout / "text.txt").read_text() == "first\nwrong\n"


def test_a_patch_that_does_not_apply_is_told_in_one_line_with_the_file(
    change: Change, checkout: Path
) -> None:
    (checkout / "text.txt").write_text("another\n", encoding="utf-8")
    with pytest.raises(DoesNotApply) as error:
        apply(change, checkout)
    told = str(error.value)
    assert told.startswith("toy.patch does not apply: patch failed: text.txt:1; make the change")
    assert "\n" not in told and not (checkout / "new.txt").exists()


def test_an_error_that_cannot_be_planted_is_told_with_the_file(checkout: Path) -> None:
    with pytest.raises(DoesNotApply, match=r"text\.txt has 'gone' 0 times"):
        make_wrong(Wrong("text.txt", "gone", "wrong"), checkout)


def test_a_patch_without_its_head_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "toy.patch").write_text("what: a change\n" + DIFF, encoding="utf-8")
    with pytest.raises(DoesNotApply, match=r"toy\.patch: the head is not complete: 'before'$"):
        read(tmp_path / "toy.patch")


@pytest.mark.parametrize(
    ("trial", "told"),
    [
        ({}, ""),
        ({"does_not_apply": "toy.patch does not apply: text.txt"}, "toy.patch does not apply"),
        ({"code": 3, "last_line": "no such case"}, "toy does not work: `python -c"),
        ({"wrong_code": 0}, "toy is not judged: with an error"),
        # An error of the command is no finding of the judge.
        ({"wrong_code": 2}, "ended with 2, not 1"),
    ],
)
def test_what_is_wrong_with_a_trial_is_one_line(
    change: Change, trial: dict[str, int | str], told: str
) -> None:
    found = program.problem(Trial(change, **trial))  # type: ignore[arg-type]
    assert told in found and bool(told) == bool(found) and "\n" not in found


def test_a_trial_runs_the_command_with_the_change_and_with_the_error(
    change: Change, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trust.changes.trials.ROOT", checkout)
    pages_before = dict.fromkeys(CODE_PAGES, "")
    trial = tried(change, pages_before)
    # The folder has no tools/pages.py, so each page is empty before and after.
    assert (trial.code, trial.wrong_code, trial.pages, trial.is_good) == (0, 1, (), True)
    assert (checkout / "text.txt").read_text() == "first\n", "the checkout itself is changed"
    assert tried(change, pages_before | {"ops": "other"}).pages == ("docs/ops.md",)
    (checkout / "text.txt").write_text("first\nsecond\n", encoding="utf-8")
    assert "text.txt" in tried(change, pages_before).does_not_apply


def test_the_program_ends_with_one_and_the_reason_if_a_patch_does_not_apply(
    change: Change, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # `text.txt` is not in this checkout.
    monkeypatch.setattr(program, "changes", lambda: {"toy": change})
    monkeypatch.setattr(program, "code_pages", lambda root: dict.fromkeys(CODE_PAGES, ""))
    assert program.main([], None) == 1
    told = capsys.readouterr().out
    assert "| `toy` | a second line | 5 | 1 | 1 | 0 | NO | NO | NO |" in told
    assert "toy.patch does not apply: text.txt: No such file or directory" in told


def test_an_unknown_change_is_told_in_one_line() -> None:
    command = [sys.executable, "-m", "trust.changes", "no-such-change"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "unknown change 'no-such-change'; there are engine, fault" in done.stderr


def test_the_pages_of_the_code_are_those_that_the_tool_writes() -> None:
    command = [sys.executable, "tools/pages.py", "no-such-page"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert f"tools/pages.py {'|'.join(CODE_PAGES)}, or" in done.stderr


def test_the_page_has_a_row_for_each_change_with_the_files_of_its_patch() -> None:
    table = program.PAGE.with_suffix("") / "changes.csv"
    _, *lines = csv.reader(table.read_text(encoding="utf-8").splitlines())
    rows = {cells[0]: cells[2:5] for cells in lines}
    assert rows == {
        name: [str(change.before), str(len(change.made)), str(len(change.edited))]
        for name, change in changes().items()
    }, "run python -m trust.changes --write, then tools/records.py"


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_each_change_works_and_is_red_when_it_is_wrong(name: str) -> None:
    assert program.problem(tried(changes()[name], code_pages(ROOT))) == ""
