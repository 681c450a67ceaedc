"""The list of kernels that cheat, and its record."""

from __future__ import annotations

import csv
from pathlib import Path

from trust.cheats.__main__ import cheats, legal

RECORD = Path(__file__).parents[2] / "docs" / "data" / "cheats" / "cheats.csv"


def test_every_kernel_has_a_row_in_the_record_with_its_verdict() -> None:
    with RECORD.open(encoding="utf-8", newline="") as file:
        verdicts = {row["kernel"]: row["verdict"] for row in csv.DictReader(file)}
    assert list(verdicts) == list(cheats())
    assert {name for name, verdict in verdicts.items() if verdict == "legal"} == set(legal())


def test_every_kernel_says_what_it_does() -> None:
    assert all(doc.endswith(".") for _, doc in cheats().values())
