"""What prints to a terminal: the console, tables, and sentences that are wrapped at words."""

from __future__ import annotations

import itertools
import sys
import textwrap
from collections.abc import Collection, Mapping, Sequence
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


def table(*titles: str, no_wrap: Collection[str] = ()) -> Table:
    """An empty table with these columns. Long cells are folded, except in the columns of `no_wrap`."""
    made = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in titles:
        made.add_column(printable(name), overflow="fold", no_wrap=name in no_wrap)
    return made


def columns(rows: Sequence[Mapping[str, object]], width: int) -> list[str]:
    """Rows as lines of at most `width` where that can be: a heading, and below it each row, its long cells folded.

    The first column is never folded, the last one has what the others leave, each of them a quarter at most.
    """
    if not rows:
        return []
    cells = [[printable(str(value)) for value in values] for values in (rows[0], *(row.values() for row in rows))]
    first, *others = [max(map(len, column)) for column in zip(*cells, strict=True)]
    sizes = [first, *(min(size, width // 4) for size in others[:-1])]
    sizes.append(max(20, width - sum(sizes) - 2 * len(sizes)))
    lines = []
    for row in cells:
        folded = [
            [cell] if len(cell) <= size and cell.isprintable() else textwrap.wrap(cell, size)
            for cell, size in zip(row, sizes, strict=True)
        ]
        for parts in itertools.zip_longest(*folded, fillvalue=""):
            padded = (f"{part:<{size}}" for part, size in zip(parts, sizes, strict=True))
            lines.append("  ".join(padded).rstrip())
    lines.insert(1, "-" * width)
    return lines


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
