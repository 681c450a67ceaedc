"""An sdist has what the README's two commands need."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "harness",
    "adapters",
    "scenarios",
    "fixtures",
    "tests",
    "benchmarks",
    "tools",
    "docs",
    "changelog.d",
    "examples",
    ".ci",
    ".github",
)
FILES = {
    "README.md",
    "CONTRIBUTING.md",
    "constraints.txt",
    "tox.ini",
    "pyproject.toml",
    "mkdocs.yml",
    "conftest.py",
}


@pytest.mark.nightly
def test_an_sdist_has_each_file_of_the_checkout_that_tests_and_commands_read(
    tmp_path: Path,
) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    with tarfile.open(*tmp_path.iterdir()) as sdist:
        held = {name.partition("/")[2] for name in sdist.getnames()}
    files = (file for folder in FOLDERS for file in (ROOT / folder).rglob("*") if file.is_file())
    own = (file.relative_to(ROOT) for file in files)
    there = {
        file.as_posix() for file in own if not {"__pycache__", ".pytest_cache"} & set(file.parts)
    } | FILES
    assert not there - held
