"""Keep the long tables of a record beside its page: python tools/records.py docs/data/PAGE.md...

A reader of a record wants what it says, and seldom each row. So a table becomes a CSV file if it
has more than 12 rows, or more than 6 rows and 100 words. A listing of more than 12 lines becomes a
text file. Both stand in the folder `docs/data/PAGE/`, under the name of their section, and the page
links them. Programs that write a record print whole tables; run this afterwards. A page without a
long table stays as it is.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from pathlib import Path

MOST_ROWS = 12
MOST_LINES = 12
FEW_ROWS = 6
MOST_WORDS = 100
"""Of a table that has more than a few rows."""
_TABLE = re.compile(r"(?m)^\|.*\|\n\|[ :|-]+\|\n(?:\|.*\|\n?)+")
_LISTING = re.compile(r"(?ms)^```text\n(.*?)^```\n?")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_BAR = re.compile(r"(?<!\\)\|")


def cells(line: str) -> list[str]:
    """The cells of a row of Markdown, without what only Markdown needs."""
    plain = re.sub(r"\*\*|`", "", _LINK.sub(r"\1", line.strip()))
    return [cell.strip().replace(r"\|", "|") for cell in _BAR.split(plain)[1:-1]]


def comma_separated(table: str) -> str:
    """A table of Markdown as the text of a CSV file."""
    head, _, *rows = table.strip().splitlines()
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(cells, [head, *rows]))
    return text.getvalue()


def slug(title: str) -> str:
    """The name of the files of a section: its title, up to a word at 40 characters."""
    name = re.sub(r"[^a-z0-9.]+", "-", title.lower()).strip("-.") or "table"
    return name if len(name) <= 40 else name[:41].rpartition("-")[0]


def is_long(rows: list[str]) -> bool:
    """Whether a table of these rows belongs into a file."""
    num_words = sum(len(row.split()) for row in rows)
    return len(rows) > MOST_ROWS or (len(rows) > FEW_ROWS and num_words > MOST_WORDS)


def split(page: str, folder: str) -> tuple[str, dict[str, str]]:
    """The page without its long tables, and the name and text of each file beside it."""
    files: dict[str, str] = {}

    def kept(title: str, ending: str, text: str, what: str) -> str:
        stem = slug(title)
        names = (f"{stem}{number}.{ending}" for number in ("", *(f"-{n}" for n in range(2, 99))))
        name = next(name for name in names if name not in files)
        files[name] = text
        return f"{what}: [{name}]({folder}/{name})\n"

    def section(text: str) -> str:
        heading = text.partition("\n")[0]
        title = folder if heading.startswith("# ") else heading.lstrip("# ")

        def table(found: re.Match[str]) -> str:
            head, _, *rows = found[0].strip().splitlines()
            if not is_long(rows):
                return found[0]
            columns = ", ".join(cell for cell in cells(head) if cell)
            return kept(title, "csv", comma_separated(found[0]), f"{len(rows)} rows ({columns})")

        def listing(found: re.Match[str]) -> str:
            if found[1].count("\n") <= MOST_LINES:
                return found[0]
            return kept(title, "txt", found[1], "Output")

        return _LISTING.sub(listing, _TABLE.sub(table, text))

    return "".join(map(section, re.split(r"(?m)^(?=#+ )", page))), files


def main(pages: list[str]) -> None:
    """Rewrite the pages, and write the files beside them."""
    for page in map(Path, pages):
        text, files = split(page.read_text(encoding="utf-8"), page.stem)
        page.write_text(text, encoding="utf-8")
        for name, content in files.items():
            file = page.with_suffix("") / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
