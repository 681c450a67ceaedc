"""Each finding has a page and a row of the table, newest first. It links what the record adds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted((DOCS / "findings").glob("*.md"))
TABLE = (DOCS / "findings.md").read_text(encoding="utf-8")
RECORD = (DOCS / "data" / "findings.md").read_text(encoding="utf-8")
SAYS = ("**Where**", "**What it costs**", "**Upstream**")


def number(page: Path) -> int:
    return int(page.name.partition("-")[0])


def test_the_table_has_each_finding_once_and_the_newest_first() -> None:
    rows = re.findall(r"^\| \[(\d+)\]\(findings/([^)]+)\)", TABLE, re.MULTILINE)
    assert rows == [(str(number(page)), page.name) for page in reversed(PAGES)]
    assert [int(row[0]) for row in rows] == list(range(len(PAGES), 0, -1))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_finding_says_where_it_is_what_it_costs_and_what_upstream_knows(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# {number(page)}. ")
    assert [word for word in SAYS if word not in text] == []
    linked = f"](../data/findings.md#finding-{number(page)})" in text
    assert linked == (f"\n## Finding {number(page)}\n" in RECORD)
