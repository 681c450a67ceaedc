"""Markdown of the pages under docs/: tables, and the templates beside this file."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from harness.core.errors import HarnessError


def brief(text: str, most: int = 240) -> str:
    """Text on one line, cut to `most` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= most else flat[: most - 1] + "…"


def cell(value: object) -> str:
    """A value as one cell of a table: on one line, `|` escaped."""
    return " ".join(str(value).split()).replace("|", "\\|")


def row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(map(cell, cells)) + " |"


def table(head: Iterable[str], rows: Iterable[Iterable[object]] = ()) -> str:
    """A table. Without rows its first two lines, for rows that follow later."""
    titles = list(head)
    return "\n".join([row(titles), "|" + " --- |" * len(titles), *map(row, rows)])


def columns(rows: Iterable[Mapping[str, Any]], formats: Mapping[str, str]) -> str:
    """A table of records. `formats` has the format string of each column by its title: `{seconds:.0f} s`."""
    return table(formats, ([fill(text, values) for text in formats.values()] for values in rows))


def fill(text: str, values: Mapping[str, Any]) -> str:
    return text.format(**values)


def render(template: str, filters: Mapping[str, Any], **values: Any) -> str:
    """The page that a template makes from the values. Raises UndefinedError for a value that is missing."""
    folder = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=folder, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"cell": cell, "columns": columns, "fill": fill, "fmt": format, **filters}
    environment.globals |= {"table": table}
    page = environment.get_template(template).render(**values)
    return re.sub(r"\n{3,}", "\n\n", page).strip() + "\n"


def main(usage: str, page: Callable[[list[str]], str]) -> None:
    """Print the page of the words of the command line. Ends with one sentence if there are none, or on an error."""
    tool = Path(sys.argv[0]).stem
    if not sys.argv[1:]:
        sys.exit(f"usage: python tools/{tool}.py {usage}")
    try:
        print(page(sys.argv[1:]))
    except HarnessError as error:
        sys.exit(f"{tool}: {error}")
