"""docs/data/tolerances has the bounds of the code, and a few new samples keep what it says of
right kernels.
"""

from __future__ import annotations

import csv
import math
import subprocess
import sys
from pathlib import Path

import pytest

from harness.evidence.thresholds import BOUNDS

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "docs" / "data" / "tolerances"
LINES = [
    line.strip("| ").split(" | ")
    for line in RECORD.with_suffix(".md").read_text(encoding="utf-8").splitlines()
]
with (RECORD / "tolerances.csv").open(encoding="utf-8", newline="") as file:
    ROWS = {cells[0]: cells for cells in list(csv.reader(file))[1:]}
DECISIONS = [cells for cells in LINES if cells[0] in ("experts", "tokens")]


def test_the_page_has_every_bound_as_it_is() -> None:
    assert sorted(ROWS) == sorted(row.name for row in BOUNDS)
    for row in BOUNDS:
        limits = [
            str(row.dtype).removeprefix("torch."),
            f"{row.ulps:g}",
            f"{row.floor:g}",
            f"{row.relative_l2:g}",
        ]
        assert ROWS[row.name][1:5] == limits, row.name


def test_right_kernels_use_less_than_each_bound() -> None:
    measured = [cells for cells in ROWS.values() if cells[6] != "not measured"]
    assert len(measured) > 40
    for cells in measured:
        assert max(map(float, cells[6:8])) < 1.0, cells[0]
    assert len(DECISIONS) >= 6 and all(float(cells[3]) < 1.0 for cells in DECISIONS)


@pytest.mark.nightly
def test_the_script_measures_each_bound_that_the_page_says_it_measured() -> None:
    command = [sys.executable, "-m", "trust.tolerances", "--draws", "600", "--seeds", "2"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    lines = [
        line.strip("| ").split(" | ") for line in printed.splitlines() if line.startswith("| `")
    ]
    # The script prints a second table, of bounds that changed, with fewer columns.
    again = [cells for cells in lines if len(cells) >= 8]
    assert sorted(cells[0].strip("`") for cells in again) == sorted(ROWS)
    shares = [
        float(share) for cells in again for share in cells[6:8] if share and share != "not measured"
    ]
    assert shares and all(share < 1.0 and math.isfinite(share) for share in shares)
