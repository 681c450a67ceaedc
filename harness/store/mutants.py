"""The score of a set of mutants, and its tables: by file, by operator, by oracle, and what was not killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from harness.accuracy.judge import wilson_interval
from harness.core.mutants import MutantResult, Status
from harness.core.records import Interval

STATUSES: tuple[Status, ...] = ("killed", "survived", "not reached", "error", "equivalent")
HEAD = ("mutants", *STATUSES, "kill rate", "95 % interval")
ORACLE_HEAD = ("killed by", "mutants")
LEFT_HEAD = ("place", "operator", "change", "status", "why")


Row = tuple[str, ...]
Table = tuple[Row, list[Row]]
"""The titles, and the rows."""


@dataclass(frozen=True, slots=True)
class Score:
    """How many mutants were killed of those that change an output or that no case reaches."""

    killed: int
    counted: int
    equivalent: int

    @property
    def rate(self) -> float:
        """0 without a mutant that counts."""
        return self.killed / self.counted if self.counted else 0.0

    @property
    def interval(self) -> Interval:
        return wilson_interval(self.killed, self.counted) if self.counted else (0.0, 1.0)

    @property
    def statement(self) -> str:
        low, high = self.interval
        return (
            f"{self.killed} of {self.counted} mutants killed: {self.rate:.1%} ({low:.1%} to {high:.1%}); "
            f"{self.equivalent} more change no output of any case"
        )


def score(results: Sequence[MutantResult]) -> Score:
    counts = Counter(result.status for result in results)
    return Score(counts["killed"], len(results) - counts["equivalent"], counts["equivalent"])


def tables(results: Sequence[MutantResult]) -> list[Table]:
    """Tables, each as a head and rows: by file, by operator, by oracle, and each mutant that was not killed."""
    oracles = Counter(result.by for result in results if result.status == "killed")
    killers: list[Row] = [(name, str(count)) for name, count in sorted(oracles.items(), key=lambda pair: -pair[1])]
    left: list[Row] = [
        (f"{one.file}:{one.line} {one.function}", one.operator, one.change, one.status, one.reason or one.case)
        for one in results
        if one.status not in ("killed", "equivalent")
    ]
    # Errors under conditions have no line.
    titles = ("file", "operator") if results and results[0].line else ("conditions", "error")
    shown: list[Table] = [
        ((titles[0], *HEAD), _rows(results, "file")),
        ((titles[1], *HEAD), _rows(results, "operator")),
        (ORACLE_HEAD, killers),
        (LEFT_HEAD, left),
    ]
    return [table for table in shown if table[1]] if results else []


def _rows(results: Sequence[MutantResult], field: str) -> list[Row]:
    """One row for each value of a field, and one for all."""
    groups: dict[str, list[MutantResult]] = {}
    for result in sorted(results, key=lambda one: str(getattr(one, field))):
        groups.setdefault(getattr(result, field), []).append(result)
    return [_row(name, group) for name, group in groups.items()] + [_row("all", results)]


def _row(name: str, results: Sequence[MutantResult]) -> Row:
    counts, found = Counter(result.status for result in results), score(results)
    low, high = found.interval
    rate = (f"{found.rate:.1%}", f"{low:.0%} to {high:.0%}") if found.counted else ("", "")
    return (name, str(len(results)), *(str(counts[status]) for status in STATUSES), *rate)
