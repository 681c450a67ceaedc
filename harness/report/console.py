"""What prints to a terminal: the console, tables, and sentences that are wrapped at words."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Collection
from typing import IO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.report.wording import printable

PIPE_WIDTH = 140


def console_for(stream: IO[str] | None = None, *, moves: bool = True) -> Console:
    """A console without markup, so that a kernel's message cannot colour or break a line. It `moves` in a terminal."""
    target = stream or sys.stdout
    # A file or a CI log has no width of its own.
    width = None if target.isatty() else PIPE_WIDTH
    is_forced = None if moves else False
    return Console(file=target, markup=False, highlight=False, emoji=False, width=width, force_terminal=is_forced)


def table(*titles: str, no_wrap: Collection[str] = (), title: str | None = None) -> Table:
    """An empty table with these columns. Long cells are folded, except in the columns of `no_wrap`."""
    made = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for name in titles:
        made.add_column(printable(name), overflow="fold", no_wrap=name in no_wrap)
    return made


def say(console: Console, text: str, *, indent: str = "", style: str = "") -> None:
    """Print a sentence, wrapped at words, at most 100 wide. Its further lines are indented by two more blanks."""
    lines = textwrap.wrap(
        text,
        min(100, max(40, console.width - 1)),
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    console.print(Text("\n".join(lines), style=style), soft_wrap=True)
