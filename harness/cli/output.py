"""What commands print: lines for people, one JSON object for programs, warnings on standard
error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.errors import InputError
from harness.core.files import write_atomic
from harness.report.console import console_for

if TYPE_CHECKING:
    from rich.console import Console


def console(as_json: bool = False, moves: bool = True) -> Console:
    """The console for people: standard error if standard output gets one JSON object.

    Bars need one that `moves`.
    """
    return console_for(sys.stderr if as_json else sys.stdout, moves=moves)


def print_json(value: object, default: Callable[[Any], object] | None = None) -> None:
    """Print strict JSON on standard output; `default` converts what JSON has no type for.

    Raises ValueError for NaN.
    """
    sys.stdout.write(json.dumps(value, default=default, allow_nan=False, indent=1) + "\n")


def warn(message: str) -> None:
    print("mla-harness: warning:", " ".join(message.split()), file=sys.stderr)


def write_page(file: Path, text: str) -> None:
    """Write a page, and say so on standard error.

    Raises InputError if the file cannot be written.
    """
    try:
        write_atomic(file, text)
    except OSError as error:
        raise InputError(f"--html {file}: cannot be written ({error.strerror})") from None
    print(f"page: {file}", file=sys.stderr)


def print_block(screen: Console, title: str, lines: dict[str, str]) -> None:
    """Print `title`, and below it a line for each name with its text. Nothing without lines."""
    if not lines:
        return
    from rich.padding import Padding
    from rich.table import Column, Table

    screen.print(f"\n{title}", style="bold", soft_wrap=True)
    grid = Table.grid(Column(no_wrap=True), Column(overflow="fold"), padding=(0, 2))
    for name, text in lines.items():
        grid.add_row(name, text)
    screen.print(Padding(grid, (0, 0, 0, 2)))
