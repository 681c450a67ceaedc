"""`mla-harness bisect --html`: the verdicts of each case in each version, as one page."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report.bisect import BAD, Column, exit_code_of_columns, reasons, rows
from harness.report.page import environment_of_page, own_code
from harness.report.wording import num

COLOURS = ("pass", "fail", "crash", "skip", "error", "known")
"""First words of a cell that have a colour of their own."""
OF_FAULTS = {"caught": "pass", "missed": "fail", "wrong": "fail", "as": "skip"}
"""First words of a fault's cell -> the verdict that lends its colour."""


def render(columns: Sequence[Column]) -> str:
    """The page of these versions. Raises ValueError without any."""
    if not columns:
        raise ValueError("no version")
    found = rows(columns)
    engines = {column.label.rpartition(" ")[0] for column in columns}
    text: str = (
        environment_of_page()
        .get_template("bisect.html")
        .render(
            columns=columns,
            labels=labels(columns) if len(engines) == 1 else [one.label for one in columns],
            rows=[(row, [(colour_of(cell), cell) for cell in row.cells]) for row in found],
            headline=_headline(columns),
            verdict=_verdict(columns),
            reasons=reasons(columns),
            **own_code(),
        )
    )
    return text


def labels(columns: Sequence[Column]) -> list[str]:
    """The versions without the name of the engine, which all of them share."""
    return [column.label.rpartition(" ")[2] for column in columns]


def colour_of(cell: str) -> str:
    """The verdict that colours a cell such as `FAIL finite`; empty for a case that is not there."""
    first = cell.lower().partition(" ")[0]
    return first if first in COLOURS else OF_FAULTS.get(first, "")


def _bad_cases(columns: Sequence[Column]) -> set[str]:
    return {
        name for column in columns for name, case in column.cases.items() if case["verdict"] in BAD
    }


def _headline(columns: Sequence[Column]) -> str:
    cases = {name for column in columns for name in column.cases}
    bad = _bad_cases(columns)
    if not cases:
        return "Nothing could be run in any version"
    if not any(
        case["verdict"] in ("pass", *BAD) for column in columns for case in column.cases.values()
    ):
        return f"Nothing was judged in any version: see why for {num(len(cases), 'case')}"
    found = f"No version is bad in {num(len(cases), 'case')}"
    if bad:
        verb = "is" if len(bad) == 1 else "are"
        found = f"{len(bad)} of {num(len(cases), 'case')} {verb} bad in a version"
    uncaught = sum(not fault["caught"] for column in columns for fault in column.faults)
    return found + (f", {num(uncaught, 'fault')} not caught" if uncaught else "")


def _verdict(columns: Sequence[Column]) -> str:
    """The colour of the page, by the exit code of the command."""
    if code := exit_code_of_columns(columns):
        return {1: "fail", 2: "skip"}.get(code, "error")
    return "known" if _bad_cases(columns) else "pass"
