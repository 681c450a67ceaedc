"""A record has its long tables and listings in files beside it, which it links."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATA = ROOT / "docs" / "data"
RECORDS = sorted(DATA.glob("*.md"))
FILES = sorted(file for file in DATA.glob("*/*") if file.is_file())
LONG = "".join(f"| `k{number}` | {number} | [one](a.md) |\n" for number in range(13))
SHORT = "".join(f"| `k{number}` | {number} | |\n" for number in range(12))
HEAD = "| kernel | cells | why |\n| --- | --- | --- |\n"


def kept(folder: Path, text: str) -> str:
    """A record of this text, after `tools/records.py`."""
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    subprocess.run([sys.executable, "tools/records.py", str(page)], cwd=ROOT, check=True)
    return page.read_text(encoding="utf-8")


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_a_record_holds_no_long_table(record: Path, tmp_path: Path) -> None:
    text = record.read_text(encoding="utf-8")
    assert kept(tmp_path, text) == text, f"run python tools/records.py docs/data/{record.name}"


def test_every_file_beside_the_records_is_linked_and_has_rows() -> None:
    texts = "".join(record.read_text(encoding="utf-8") for record in RECORDS)
    links = set(re.findall(r"\]\(([\w.-]+/[\w.-]+\.(?:csv|txt))\)", texts))
    assert links == {file.relative_to(DATA).as_posix() for file in FILES}
    for file in FILES:
        if file.suffix == ".csv":
            with file.open(encoding="utf-8", newline="") as opened:
                head, *rows = csv.reader(opened)
            assert rows and {len(row) for row in rows} == {len(head)}, file.name


def test_a_long_table_becomes_a_file_of_its_section_and_a_short_one_stays(tmp_path: Path) -> None:
    page = kept(tmp_path, f"# Page\n\n## The cells\n\n{HEAD}{LONG}\n{HEAD}{SHORT}")
    link = "13 rows (kernel, cells, why): [the-cells.csv](page/the-cells.csv)"
    assert page == f"# Page\n\n## The cells\n\n{link}\n\n{HEAD}{SHORT}"
    rows = (tmp_path / "page" / "the-cells.csv").read_text(encoding="utf-8").splitlines()
    assert rows[:2] == ["kernel,cells,why", "k0,0,one"] and len(rows) == 14
    # A second time it finds nothing to do.
    assert kept(tmp_path, page) == page


def test_a_table_of_many_words_and_a_long_listing_become_files(tmp_path: Path) -> None:
    wordy = "".join(f"| {'word ' * 20}| {number} | |\n" for number in range(9))
    listing = "".join(f"line {number}\n" for number in range(13))
    page = kept(tmp_path, f"# Page\n\n{HEAD}{wordy}\n## Out\n\n```text\n{listing}```\n")
    assert "[page.csv](page/page.csv)" in page and "Output: [out.txt](page/out.txt)" in page
    assert (tmp_path / "page" / "out.txt").read_text(encoding="utf-8") == listing
