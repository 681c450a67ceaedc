"""Runs of the same cases under several interpreters -> one table, and the first version in which each case is bad."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.core.catalog import ENGINES
from harness.core.engine_spec import engine_versions

FAILED = ("fail", "crash")
BAD = (*FAILED, "known")
"""A known failure is bad in its version, and fails no run."""
JUDGED = ("pass", *BAD)
AS_RELEASED = "has this bug as released"


@dataclass(slots=True)
class Column:
    """What one interpreter gave: its run's `summary.json`, what `selftest` said of faults, and how it was started."""

    interpreter: str
    site: str | None = None
    seconds: float = 0.0
    summary: dict[str, Any] = field(default_factory=dict)
    faults: list[dict[str, Any]] = field(default_factory=list)
    skipped_faults: list[dict[str, Any]] = field(default_factory=list)
    trouble: str = ""
    """Why there is no summary, in one sentence."""

    @property
    def label(self) -> str:
        """The judged version: of an engine where one is installed, else of Python."""
        environment = self.summary.get("environment", {})
        for name, version in engine_versions(environment).items():
            return f"{ENGINES.get(name).title} {version}"
        return f"Python {environment['python']}" if environment.get("python") else self.interpreter

    @property
    def order(self) -> tuple[int, ...]:
        """The numbers of the judged version; empty without an engine."""
        version = next(iter(engine_versions(self.summary.get("environment", {})).values()), "")
        return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


@dataclass(frozen=True, slots=True)
class Row:
    """One case, or one fault put back on a case, under every interpreter."""

    name: str
    refs: tuple[str, ...]
    cells: tuple[str, ...]
    answer: str
    is_fault: bool = False

    def of(self, case: Row) -> bool:
        """Whether this is a fault put back on `case`."""
        return self.is_fault and self.name.startswith(f"{case.name} with ")


def in_order(columns: Sequence[Column]) -> list[Column]:
    """Oldest version first where all are known; else as they were given."""
    if not all(column.order for column in columns):
        return list(columns)
    return sorted(columns, key=lambda column: column.order)


def rows(columns: Sequence[Column]) -> list[Row]:
    """A row for each case in the order it was planned, followed by one for each fault that was put back on it."""
    found: dict[str, tuple[str, ...]] = {}
    for column in columns:
        for case in column.summary.get("cases", []):
            found.setdefault(case["id"], tuple(case["refs"]))
    cases = []
    for name, refs in found.items():
        verdicts = [_verdict(column, name) for column in columns]
        versions = [column.label.rpartition(" ")[2] for column in columns]
        cells = tuple(_case_cell(column, name) for column in columns)
        cases.append(Row(name, refs, cells, first_bad(versions, verdicts)))
    faults = _fault_rows(columns, found)
    placed = [row for case in cases for row in (case, *(fault for fault in faults if fault.of(case)))]
    return placed + [fault for fault in faults if fault not in placed]


def first_bad(labels: Sequence[str], verdicts: Sequence[str]) -> str:
    """In words, the first version with a bad verdict, and the first good one after it."""
    judged = [(label, verdict) for label, verdict in zip(labels, verdicts, strict=True) if verdict in JUDGED]
    bad = [index for index, (_, verdict) in enumerate(judged) if verdict in BAD]
    if not judged:
        return "not judged"
    if not bad:
        return "none bad"
    words = judged[bad[0]][0] + (", the oldest" if bad[0] == 0 else f", good in {judged[bad[0] - 1][0]}")
    mended = next((label for label, verdict in judged[bad[0] :] if verdict not in BAD), None)
    return words + (f"; mended in {mended}" if mended else "")


def is_good(columns: Sequence[Column]) -> int:
    """The exit code: 3 when an interpreter could not be asked or the harness could not judge, 1 for anything bad."""
    verdicts = {case["verdict"] for column in columns for case in column.summary.get("cases", [])}
    if any(column.trouble for column in columns) or "error" in verdicts:
        return 3
    missed = any(not fault["caught"] for column in columns for fault in column.faults)
    return int(missed or bool(verdicts & set(FAILED)))


def to_object(columns: Sequence[Column]) -> dict[str, Any]:
    """The table for other programs."""
    return {
        "columns": [
            {
                "label": column.label, "interpreter": column.interpreter, "site": column.site,
                "seconds": round(column.seconds, 1), "trouble": column.trouble,
                "environment": column.summary.get("environment", {}),
            }
            for column in columns
        ],
        "rows": [
            {
                "name": row.name, "fault": row.is_fault, "refs": list(row.refs), "cells": list(row.cells),
                "first_bad": row.answer,
            }
            for row in rows(columns)
        ],
    }  # fmt: skip


def reasons(columns: Sequence[Column]) -> list[str]:
    """What a reader asks of a table next: why a column is empty, why a case was skipped, what was found first."""
    lines: dict[str, None] = {}
    told: set[str] = set()
    for column in columns:
        if column.trouble:
            lines[f"{column.label}: {column.trouble}"] = None
        for case in column.summary.get("cases", []):
            if case["verdict"] in ("skip", "error"):
                lines[f"{column.label}: {case['id']}: {case['verdict']}: {case['reason']}"] = None
            elif case["verdict"] in BAD and case["id"] not in told:
                told.add(case["id"])
                lines[f"{column.label}: {case['id']}: {_first_message(case)}"] = None
        for fault in column.faults:
            if not fault["caught"]:
                lines[f"{column.label}: {fault['case']} with {fault['fault']}: MISSED: {fault['reason']}"] = None
    return list(lines)


def _fault_rows(columns: Sequence[Column], refs: dict[str, tuple[str, ...]]) -> list[Row]:
    pairs: dict[tuple[str, str], None] = {}
    for column in columns:
        pairs.update({(fault["case"], fault["fault"]): None for fault in (*column.faults, *column.skipped_faults)})
    order = {name: place for place, name in enumerate(refs)}
    found = []
    for case, fault in sorted(pairs, key=lambda pair: order.get(pair[0], len(order))):
        cells = tuple(_fault_cell(column, case, fault) for column in columns)
        tried = [cell for cell in cells if cell.startswith(("caught", "MISSED"))]
        answer = f"caught {sum(cell.startswith('caught') for cell in tried)} of {len(tried)}"
        found.append(Row(f"{case} with {fault}", refs.get(case, ()), cells, answer, is_fault=True))
    return found


def _case_cell(column: Column, name: str) -> str:
    case = _case(column, name)
    if case is None:
        return "-"
    if case["verdict"] in BAD and case["findings"]:
        return f"{_shown(case['verdict'])} {case['findings'][0]['oracle']}"
    return _shown(case["verdict"])


def _shown(verdict: str) -> str:
    return verdict.upper() if verdict in (*FAILED, "error") else verdict


def _fault_cell(column: Column, case: str, fault: str) -> str:
    for result in column.faults:
        if (result["case"], result["fault"]) == (case, fault):
            return f"caught {result['by'][0]}" if result["caught"] else "MISSED"
    for result in column.skipped_faults:
        if (result["case"], result["fault"]) == (case, fault):
            return "as released" if AS_RELEASED in result["reason"] else "skip"
    return "-"


def _case(column: Column, name: str) -> dict[str, Any] | None:
    found: list[dict[str, Any]] = [case for case in column.summary.get("cases", []) if case["id"] == name]
    return found[0] if found else None


def _verdict(column: Column, name: str) -> str:
    case = _case(column, name)
    return "" if case is None else str(case["verdict"])


def _first_message(case: dict[str, Any]) -> str:
    findings = case["findings"]
    return f"{findings[0]['oracle']}: {findings[0]['message']}" if findings else str(case["reason"])
