"""A wheel finds its scenarios from any folder, and an sdist has what the README's two commands need."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("harness", "scenarios", "fixtures", "tests", "benchmarks", "tools", "docs", "examples", ".ci", ".github")
FILES = {"README.md", "CONTRIBUTING.md", "constraints.txt", "tox.ini", "pyproject.toml", "mkdocs.yml", "conftest.py"}


def built(kind: str, folder: Path) -> Path:
    """The file that the build backend makes of this checkout."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)], cwd=ROOT, check=True,
        capture_output=True,
    )  # fmt: skip
    (made,) = folder.iterdir()
    return made


def test_a_wheel_finds_its_scenarios_and_canaries_from_any_folder(tmp_path: Path) -> None:
    with zipfile.ZipFile(built("wheel", tmp_path / "dist")) as wheel:
        wheel.extractall(tmp_path / "site")
    code = (
        "import harness, sys\nfrom harness.cli.main import exit_code_of\n"
        "from harness.core.files import FIXTURES\n"
        "assert 'site' in harness.__file__ and (FIXTURES / 'canary-mla').is_dir()\n"
        "sys.exit(exit_code_of(['show', 'mixed-context']))"
    )
    path = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "mixed-context[" in done.stdout


def test_an_sdist_has_each_file_of_the_checkout_that_tests_and_commands_read(tmp_path: Path) -> None:
    with tarfile.open(built("sdist", tmp_path)) as sdist:
        held = {name.partition("/")[2] for name in sdist.getnames()}
    files = (file for folder in FOLDERS for file in (ROOT / folder).rglob("*") if file.is_file())
    own = (file.relative_to(ROOT) for file in files)
    there = {file.as_posix() for file in own if not {"__pycache__", ".pytest_cache"} & set(file.parts)} | FILES
    assert not there - held
