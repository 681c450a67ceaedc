"""What commands print: lines and tables for people, one JSON object for programs, warnings on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from harness.report.terminal import console_for
from harness.report.wording import printable


def console(as_json: bool = False, moves: bool = True) -> Console:
    """The console for people: standard error if standard output gets one JSON object. Bars need one that `moves`."""
    return console_for(sys.stderr if as_json else sys.stdout, moves=moves)


def print_json(value: object, default: Callable[[Any], object] | None = None) -> None:
    """Print strict JSON on standard output; `default` converts what JSON has no type for. Raises ValueError for NaN."""
    sys.stdout.write(json.dumps(value, default=default, allow_nan=False, indent=1) + "\n")


def table(*titles: str, no_wrap: Collection[str] = (), title: str | None = None) -> Table:
    """An empty table with these columns. Long cells are folded, except in the columns of `no_wrap`."""
    made = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for name in titles:
        made.add_column(printable(name), overflow="fold", no_wrap=name in no_wrap)
    return made


def warn(message: str) -> None:
    print("mla-harness: warning:", " ".join(message.split()), file=sys.stderr)
