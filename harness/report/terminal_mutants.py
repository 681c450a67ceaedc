"""Mutants in a terminal: who was killed by which oracle, and the score."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from harness.core.mutants import MutantResult, SurveyedCase
from harness.report.wording import one_line, printable
from harness.store.mutants import score, tables


def print_mutants(console: Console, results: Sequence[MutantResult], unused: Sequence[SurveyedCase]) -> None:
    """Print the tables of mutants, the cases that could not judge any, and the score."""
    for head, rows in tables(results):
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for title in head:
            table.add_column(title, overflow="fold")
        for row in rows:
            table.add_row(*map(printable, row))
        console.print(table)
    for case in unused:
        console.print(f"not used: {printable(case.id)}: {one_line(case.why_not, 200)}", soft_wrap=True)
    console.print(score(results).statement, soft_wrap=True)
