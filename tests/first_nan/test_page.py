"""The table of docs/first-nan.md is what a run gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.nightly
def test_the_table_of_the_page_is_what_a_run_gives() -> None:
    command = [sys.executable, str(ROOT / "tools" / "first_nan_document.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_bug_of_the_page_is_named_as_a_person_would() -> None:
    text = (ROOT / "docs" / "first-nan.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| vllm-project/vllm#")]
    assert {row.split(" | ")[0].rpartition("#")[2] for row in rows} == {"36540", "43961", "35175", "42444", "38359"}
    assert all(row.endswith("| yes |") for row in rows)
