"""Runs of the same cases under several interpreters -> one table, and the first version in which
each case is bad.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.core.catalog import ENGINES
from harness.core.cause_codes import Code
from harness.core.fault_outcomes import CAUGHT, MISSED, fault_outcome
from harness.core.systems import engine_versions
from harness.report.wording import fault_word

_MISSED = "MISSED"
_WRONG_BLAME = "WRONG BLAME"
FAILED = ("fail", "crash")
BAD = (*FAILED, "known")
"""A known failure is bad in its version, and fails no run."""


@dataclass(slots=True)
class Column:
    """What one interpreter gave: the `summary.json` of its run, and the faults of a selftest."""

    interpreter: str
    site: str | None = None
    """A folder of packages that it ran with."""
    seconds: float = 0.0
    summary: dict[str, Any] = field(default_factory=dict)
    faults: list[dict[str, Any]] = field(default_factory=list)
    skipped_faults: list[dict[str, Any]] = field(default_factory=list)
    trouble: str = ""
    """Why there is no summary, in one sentence."""

    @property
    def environment(self) -> dict[str, Any]:
        found: dict[str, Any] = self.summary.get("environment", {})
        return found

    @property
    def cases(self) -> dict[str, dict[str, Any]]:
        return {case["id"]: case for case in self.summary.get("cases", [])}

    @property
    def fault_cells(self) -> dict[tuple[str, str], str]:
        """(case, fault) -> what became of the fault, in words."""
        cells = {(one["case"], one["fault"]): _fault_cell(one) for one in self.faults}
        for one in self.skipped_faults:
            cells[one["case"], one["fault"]] = (
                "as released" if one["cause"] == Code.AS_RELEASED else "skip"
            )
        return cells

    @property
    def label(self) -> str:
        """The judged version: of an engine where one is installed, else of Python."""
        for name, version in engine_versions(self.environment).items():
            return f"{ENGINES.get(name).title} {version}"
        return (
            f"Python {self.environment['python']}"
            if self.environment.get("python")
            else self.interpreter
        )

    @property
    def order(self) -> tuple[int, ...]:
        """The numbers of the judged version; empty without an engine."""
        version = next(iter(engine_versions(self.environment).values()), "")
        # Three numbers: a local part such as +cu130 is no later version.
        return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


@dataclass(frozen=True, slots=True)
class Row:
    """One case, or one fault injected in a case, under every interpreter."""

    name: str
    refs: tuple[str, ...]
    cells: tuple[str, ...]
    answer: str
    is_fault: bool = False


def in_order(columns: Sequence[Column]) -> list[Column]:
    """Oldest version first where all are known; else as they were given."""
    return (
        sorted(columns, key=lambda column: column.order)
        if all(c.order for c in columns)
        else list(columns)
    )


def rows(columns: Sequence[Column]) -> list[Row]:
    """A row for each case in the order of the plan, each followed by the faults that were injected
    in it.
    """
    refs: dict[str, tuple[str, ...]] = {}
    for column in columns:
        for name, case in column.cases.items():
            refs.setdefault(name, tuple(case["refs"]))
    versions = [column.label.rpartition(" ")[2] for column in columns]
    faults = _fault_rows(columns, refs)
    found = []
    for name in refs:
        cases = [column.cases.get(name) for column in columns]
        verdicts = [case["verdict"] if case else "" for case in cases]
        found.append(
            Row(name, refs[name], tuple(map(_case_cell, cases)), first_bad(versions, verdicts))
        )
        found += faults.pop(name, [])
    return found + [row for others in faults.values() for row in others]


def first_bad(labels: Sequence[str], verdicts: Sequence[str]) -> str:
    """In words, the first version with a bad verdict, and the first good one after it."""
    # A version that skipped a case says neither that it is good there nor that it is bad.
    judged = [pair for pair in zip(labels, verdicts, strict=True) if pair[1] in ("pass", *BAD)]
    bad = [index for index, (_, verdict) in enumerate(judged) if verdict in BAD]
    if not judged:
        return "not judged"
    if not bad:
        return "none bad"
    words = judged[bad[0]][0] + (
        ", the oldest" if bad[0] == 0 else f", good in {judged[bad[0] - 1][0]}"
    )
    # Searched from the first bad version on: a case may come and go with releases.
    mended = next((label for label, verdict in judged[bad[0] :] if verdict not in BAD), None)
    return words + (f"; mended in {mended}" if mended else "")


def exit_code_of_columns(columns: Sequence[Column]) -> int:
    """The exit code: 3 without a judgement, 1 for a failure or a fault that was not caught, 2 if
    all was skipped.
    """
    verdicts = {case["verdict"] for column in columns for case in column.cases.values()}
    # Our own trouble comes first: a version that was not judged must not look good.
    if any(column.trouble for column in columns) or "error" in verdicts:
        return 3
    is_caught = all(fault["caught"] for column in columns for fault in column.faults)
    if not is_caught or verdicts & set(FAILED):
        return 1
    return 2 if verdicts == {"skip"} else 0


def to_object(columns: Sequence[Column]) -> dict[str, Any]:
    named = ("label", "interpreter", "site", "trouble", "environment")
    return {
        "columns": [
            {name: getattr(column, name) for name in named} | {"seconds": round(column.seconds, 1)}
            for column in columns
        ],
        "rows": [
            {
                "name": row.name,
                "fault": row.is_fault,
                "refs": row.refs,
                "cells": row.cells,
                "first_bad": row.answer,
            }
            for row in rows(columns)
        ],
    }


def reasons(columns: Sequence[Column]) -> list[str]:
    """Why a column is empty, why cases were skipped, and the first message of each bad case, a line
    each. A reason that several cases of a column have is one line.
    """
    lines: dict[str, None] = {}
    explained: set[str] = set()
    for column in columns:
        if column.trouble:
            lines[f"{column.label}: {column.trouble}"] = None
        for name, case in column.cases.items():
            if case["verdict"] in BAD and name not in explained:
                explained.add(name)
                messages = [
                    f"{finding['oracle']}: {finding['message']}" for finding in case["findings"]
                ]
                lines[f"{column.label}: {name}: {[*messages, case['reason']][0]}"] = None
        lines |= dict.fromkeys(_unjudged(column))
        for fault in column.faults:
            if not fault["caught"]:
                word = fault_word(
                    fault_outcome(caught=fault["caught"], seen=fault.get("seen", False))
                ).upper()
                lines[
                    f"{column.label}: {fault['case']} with {fault['fault']}: {word}:"
                    f" {fault['reason']}"
                ] = None
    return list(lines)


def _unjudged(column: Column) -> list[str]:
    """Why cases of a column were skipped or could not be judged, each reason once."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, case in column.cases.items():
        if case["verdict"] in ("skip", "error"):
            found.setdefault((case["verdict"], case["reason"]), []).append(name)
    return [
        f"{column.label}: {names[0]}{f' and {len(names) - 1} more' if names[1:] else ''}:"
        f" {verdict}: {reason}"
        for (verdict, reason), names in found.items()
    ]


def _fault_rows(
    columns: Sequence[Column], refs: dict[str, tuple[str, ...]]
) -> dict[str, list[Row]]:
    cells = [column.fault_cells for column in columns]
    found: dict[str, list[Row]] = {}
    for case, fault in dict.fromkeys(pair for of_column in cells for pair in of_column):
        own = tuple(of_column.get((case, fault), "-") for of_column in cells)
        outcomes = [
            word
            for word in (CAUGHT, _WRONG_BLAME, _MISSED)
            for cell in own
            if cell.startswith(word)
        ]
        answer = f"caught {outcomes.count(CAUGHT)} of {len(outcomes)}"
        found.setdefault(case, []).append(
            Row(f"{case} with {fault}", refs.get(case, ()), own, answer, is_fault=True)
        )
    return found


def _fault_cell(fault: dict[str, Any]) -> str:
    """What became of a fault, and the first oracle that saw it."""
    outcome = fault_outcome(caught=fault["caught"], seen=fault.get("seen", False))
    if outcome == MISSED:
        return _MISSED
    return f"{CAUGHT if outcome == CAUGHT else _WRONG_BLAME} {fault['by'][0]}"


def _case_cell(case: dict[str, Any] | None) -> str:
    if case is None:
        return "-"
    verdict = str(case["verdict"])
    word = verdict.upper() if verdict in (*FAILED, "error") else verdict
    return (
        f"{word} {case['findings'][0]['oracle']}" if verdict in BAD and case["findings"] else word
    )
