"""What prints to a terminal: the console, tables, and sentences that are wrapped at words."""

from __future__ import annotations

import itertools
import shutil
import sys
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import IO, TYPE_CHECKING

from harness.report.wording import printable

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod, OverflowMethod
    from rich.table import Table

PIPE_WIDTH = 140
"""A file or a CI log has no width of its own."""


def console_for(stream: IO[str] | None = None, *, moves: bool = True) -> Console:
    """A console without markup, so that a kernel's message cannot colour or break a line.

    It `moves` in a terminal.
    """
    # Imported where it prints: a list comes at once.
    from rich.console import Console

    target = stream or sys.stdout
    width = None if target.isatty() else PIPE_WIDTH
    is_forced = None if moves else False
    return Console(
        file=target,
        markup=False,
        highlight=False,
        emoji=False,
        width=width,
        force_terminal=is_forced,
    )


def table(
    *titles: str,
    no_wrap: Collection[str] = (),
    numbers: Collection[str] = (),
    widths: Mapping[str, int] | None = None,
) -> Table:
    """An empty table with these columns, `numbers` to the right.

    Long cells are folded, or cut in `no_wrap`.

    Columns in `widths` are at least so wide.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in titles:
        side: JustifyMethod = "right" if name in numbers else "left"
        how: OverflowMethod = "ellipsis" if name in no_wrap else "fold"
        least = (widths or {}).get(name)
        made.add_column(
            printable(name), justify=side, overflow=how, no_wrap=name in no_wrap, min_width=least
        )
    return made


def columns(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Rows as lines for standard output: a heading, and below it each row, its long cells folded
    where that can be.

    The first column is never folded, the last one has what the others leave, each of them a quarter
    at most.
    """
    if not rows:
        return []
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_WIDTH
    cells = [
        [printable(str(value)) for value in values]
        for values in (rows[0], *(row.values() for row in rows))
    ]
    first, *others = [max(map(len, column)) for column in zip(*cells, strict=True)]
    sizes = [first, *(min(size, width // 4) for size in others[:-1])]
    # Two blanks stand behind each column but the last.
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
    """Print a sentence, wrapped at words, at most 100 wide.

    Its further lines are indented by two more blanks.
    """
    from rich.text import Text

    lines = textwrap.wrap(
        text,
        min(100, max(40, console.width - 1)),
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    console.print(Text("\n".join(lines), style=style), soft_wrap=True)
