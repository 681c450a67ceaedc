"""The table of what `fuzz` draws."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from trust.arrays.fuzz_reach import PROPERTIES, reached

ROOT = Path(__file__).parents[2]


def test_the_draws_have_every_property() -> None:
    found = reached(1, 600)
    assert [name for name in PROPERTIES if not found[name]] == []


def test_the_script_prints_a_table() -> None:
    command = [sys.executable, "-m", "trust.arrays.fuzz_reach", "--draws", "20", "--seed", "1"]
    told = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert len(told) == len(PROPERTIES) + 2
    assert "20 draws" in told[0]
