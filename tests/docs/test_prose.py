"""`tools/prose.py` reads the pages in tox and before a commit, and finds what it should."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
LONG = f"The kernel reads {', '.join(f'row {number}' for number in range(16))}."


def found(*names: str) -> tuple[int, str]:
    """The exit code of the lint for these files, for none of all pages, and what it prints."""
    command = [sys.executable, "tools/prose.py", *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


def found_in(folder: Path, text: str) -> list[str]:
    """The findings in a page of this text, each with its line and without its file."""
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    code, printed = found(str(page))
    assert code == bool(printed)
    return [line.removeprefix(f"{page}:") for line in printed.splitlines()]


def test_no_page_has_a_finding() -> None:
    assert found() == (0, "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Run it in order to see.", "'in order to': to"),
        ("You simply run it.", "'simply': leave it out"),
        ("It is very quick.", "'very': leave it out"),
        ("A robust engine.", "'robust': say what it does"),
        ("It reads a lot of rows.", "'a lot of': how many"),
        ("| a cell | of course |", "'of course': leave it out"),
        (LONG, "a sentence of 35 words, 30 at most"),
    ],
)
def test_a_word_or_a_sentence_that_no_page_may_have_is_found(
    tmp_path: Path, text: str, problem: str
) -> None:
    assert found_in(tmp_path, f"# Page\n\n{text}\n") == [f"3: {problem}"]


@pytest.mark.parametrize(
    "text",
    ["It ends at the the page.", "In the long run it fails.", "It is free gratis."],
)
def test_what_proselint_knows_is_found(tmp_path: Path, text: str) -> None:
    assert [one.partition(":")[0] for one in found_in(tmp_path, f"# Page\n\n{text}\n")] == ["3"]


def test_code_and_targets_of_links_are_not_read(tmp_path: Path) -> None:
    text = (
        "# Page\n\nRun `simply in order to` and [go](simply/very.md).\n\n"
        f"```console\n$ simply run the the row\n{LONG}\n```\n\n    simply\n\n"
        "| a table | has no sentence |\n| --- | --- |\n| " + "cell, " * 40 + "| |\n"
    )
    assert found_in(tmp_path, text) == []


def test_a_sentence_over_several_lines_and_in_a_list_is_counted(tmp_path: Path) -> None:
    first, second = LONG.split(" row 8", 1)
    assert found_in(
        tmp_path, f"# Page\n\nShort one.\n\n- It is so. {first}\n  row 8{second}\n"
    ) == ["5: a sentence of 35 words, 30 at most"]


def test_tox_and_the_hook_of_commits_run_it_in_the_pinned_version() -> None:
    tox = configparser.ConfigParser()
    tox.read(ROOT / "tox.ini")
    assert "python tools/prose.py" in tox["testenv"]["commands"].split("\n")
    pinned = re.search(r"^proselint==.*$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    repos = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    (hook,) = [hook for repo in repos for hook in repo["hooks"] if hook["id"] == "prose"]
    assert pinned and hook["additional_dependencies"] == [pinned[0]]
    assert re.match(hook["files"], "docs/index.md") and re.match(hook["files"], "README.md")
    assert not re.match(hook["files"], "docs/upstream/cpu-rotary/issue.md")
