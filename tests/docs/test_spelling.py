"""`codespell` reads pages, code and scenarios, in tox and before a commit. It lets the words of
tools/words.txt pass.
"""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
MISTAKE = "rec" + "ieved"  # In two parts, as this file is read too.
PLANTED = f"The kernel {MISTAKE} a row.\n"


def misspelled(folder: Path, *names: str) -> str:
    """What codespell prints for the files or folders `names` in `folder`; for none, of all."""
    command = [sys.executable, "-m", "codespell_lib", *names]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.stderr == "" and (done.returncode == 0) == (done.stdout == "")
    return done.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """An empty folder with the settings of this project."""
    for name in ("pyproject.toml", "tools/words.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    return tmp_path


def test_no_word_of_this_project_is_misspelled() -> None:
    assert misspelled(ROOT) == ""


@pytest.mark.parametrize(
    "name", ["README.md", "docs/index.md", "harness/core/a.py", "scenarios/kernels/a.yaml"]
)
def test_a_planted_misspelling_is_found(checkout: Path, name: str) -> None:
    assert misspelled(checkout) == ""
    file = checkout / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(PLANTED, encoding="utf-8")
    told = f"{name}:1: {MISTAKE} ==> received\n"
    assert misspelled(checkout) == f"./{told}" and misspelled(checkout, name) == told


def test_files_with_mistakes_on_purpose_are_left_out(checkout: Path) -> None:
    for name in ("tests/scenario/malformed/a.yaml", "constraints.txt"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text(PLANTED, encoding="utf-8")
        assert misspelled(checkout) == misspelled(checkout, name) == ""


def test_tox_and_the_hook_of_commits_run_it_in_the_pinned_version() -> None:
    tox = configparser.ConfigParser()
    tox.read(ROOT / "tox.ini")
    assert "codespell" in tox["testenv"]["commands"].split("\n")
    pinned = re.search(r"^codespell==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    (revision,) = [hook["rev"] for hook in hooks if hook["repo"].endswith("/codespell")]
    assert pinned and revision == f"v{pinned[1]}"
