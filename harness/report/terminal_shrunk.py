"""The smallest failing case on a terminal: the way there, step by step, and how to run it alone."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.core.records import ShrinkStep, Shrunk
from harness.report.terminal import finding_line
from harness.report.wording import num, one_line, printable

MAX_VALUE = 60


def step_row(step: ShrinkStep) -> tuple[str, str]:
    """What was reduced, and from what to what."""
    change = f"{one_line(step.before, MAX_VALUE)} -> {one_line(step.after, MAX_VALUE)}"
    return printable(step.what), printable(change)


def outcome_line(shrunk: Shrunk) -> str:
    """How the search ended: ``18 steps, 89 trials, 5.4 s; no smaller case fails alike``."""
    end = "no smaller case fails alike" if shrunk.is_smallest else "the time was up; a smaller one may exist"
    return f"{num(len(shrunk.steps), 'step')}, {num(shrunk.num_trials, 'trial')}, {shrunk.seconds:.1f} s; {end}"


def print_shrunk(console: Console, shrunk: Shrunk, command: str) -> None:
    """The way to the smallest case, its finding, and the `command` that runs it."""
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for place, step in enumerate(shrunk.steps, 1):
        table.add_row(str(place), *(Text(cell) for cell in step_row(step)))
    console.print(Padding(table, (0, 0, 0, 2)))
    console.print(f"  {outcome_line(shrunk)}", soft_wrap=True)
    console.print(Text("smallest: ", style="bold") + Text(printable(shrunk.case.id)), soft_wrap=True)
    console.print(Text("  " + finding_line(shrunk.finding)), soft_wrap=True)
    console.print(f"  again: {command}", markup=False, soft_wrap=True)
