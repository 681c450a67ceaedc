"""Mutants: what is asked of their trials, what became of each, and the score and tables of all of
them.

The file of a run folder has a line for each mutant.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from harness.accuracy.judge import wilson_interval
from harness.core.cases import Job
from harness.core.params import Record
from harness.core.records import SCHEMA_VERSION, Interval
from harness.core.stored import append_line, read_records
from harness.store.run_folder import RunStore

FILE = "mutants.jsonl"
Status = Literal["killed", "survived", "not exercised", "equivalent", "not reached", "error"]


class Trials(Record):
    """The request:

    `count` mutants drawn from `seed`, tried on the cases of `jobs` by `workers` processes.

    A resumed run leaves out the mutants `done`, by their names. With `conditions` a mutant is no
    change of code, but an error of the kernels under a combination of conditions. With `proves`
    drawn inputs try to tell what no case does.
    """

    jobs: tuple[Job, ...]
    count: int
    seed: int
    workers: int
    done: tuple[str, ...] = ()
    conditions: bool = False
    proves: bool = False


class SurveyedCase(Record):
    """A case on unchanged code.

    `steps` counts executed lines of the files under test, a cost without a clock.
    """

    id: str
    seconds: float = 0.0
    steps: int = 0
    lines: dict[str, tuple[int, ...]] = Field(default={})
    why_not: str = Field(
        default="", description="why it cannot judge mutants: it does not pass, or its outputs vary"
    )


class MutantResult(Record):
    """What became of one mutant.

    `killed` by an oracle in `case`; `survived`: outputs of `case` changed and no oracle saw it;
    `not exercised`: no output of the `num_cases` cases changed; `equivalent`: nor did any of a
    property run, its `proof`; `not reached`: no case executes the line; `error`: a case could not
    be judged, and none failed.
    """

    schema_version: int = SCHEMA_VERSION
    name: str
    file: str
    function: str
    line: int
    operator: str
    change: str
    status: Status
    by: str = ""
    case: str = ""
    reason: str = ""
    num_cases: int = 0
    proof: str = ""


def add_mutant(store: RunStore, result: MutantResult) -> None:
    append_line(store.path / FILE, json.dumps(result.model_dump(mode="json"), allow_nan=False))


def mutants_of(store: RunStore) -> list[MutantResult]:
    return read_records(store.path / FILE, MutantResult)


EXCEPTIONS = ("crash", "error")
"""What notes an exception, which any run would show. Everything else that kills is a judgement."""
COLUMNS = (
    "judgement",
    "exception",
    "survived",
    "not exercised",
    "not reached",
    "error",
    "equivalent",
)
HEAD = ("mutants", *COLUMNS, "kill rate", "95 % interval")
ORACLE_HEAD = ("killed by", "mutants")
LEFT_HEAD = ("place", "operator", "change", "status", "why")
PROOF_HEAD = ("place", "change", "proof")


Row = tuple[str, ...]
Table = tuple[Row, list[Row]]


@dataclass(frozen=True, slots=True)
class Score:
    """How many mutants a judgement killed, of those that no exception shows and no proof calls
    equivalent.
    """

    killed: int
    counted: int
    exceptions: int
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
            f"{self.killed} of {self.counted} mutants killed by a judgement: {self.rate:.1%}"
            f" ({low:.1%} to {high:.1%}); {self.exceptions} more end in an exception,"
            f" {self.equivalent} are equivalent"
        )


def column(result: MutantResult) -> str:
    """The column of a mutant in the tables.

    Without a proof it is not exercised; errors of kernels have no proofs.
    """
    if result.status == "killed":
        return "exception" if result.by in EXCEPTIONS else "judgement"
    return (
        "not exercised"
        if result.status == "equivalent" and result.line and not result.proof
        else result.status
    )


def score(results: Sequence[MutantResult]) -> Score:
    counts = Counter(map(column, results))
    exceptions, proved = counts["exception"], counts["equivalent"]
    return Score(counts["judgement"], len(results) - exceptions - proved, exceptions, proved)


def tables(results: Sequence[MutantResult]) -> list[Table]:
    """Tables, each as a head and rows: by file, by operator, by oracle, what was not killed, and
    what is equivalent.
    """
    oracles = Counter(result.by for result in results if result.status == "killed")
    killers: list[Row] = [
        (name, str(count)) for name, count in sorted(oracles.items(), key=lambda pair: -pair[1])
    ]
    left: list[Row] = [
        (
            f"{one.file}:{one.line} {one.function}",
            one.operator,
            one.change,
            column(one),
            one.reason or one.case,
        )
        for one in results
        if column(one) not in ("judgement", "exception", "equivalent")
    ]
    proofs: list[Row] = [
        (f"{one.file}:{one.line} {one.function}", one.change, one.proof)
        for one in results
        if one.proof
    ]
    # Errors under conditions have no line.
    titles = ("file", "operator") if results and results[0].line else ("conditions", "error")
    strengths = [
        one.model_copy(update={"file": one.file.rpartition(", ")[2]})
        for one in results
        if not one.line
    ]
    shown: list[Table] = [
        ((titles[0], *HEAD), _rows(results, "file")),
        ((titles[1], *HEAD), _rows(results, "operator")),
        (("strength", *HEAD), _rows(strengths, "file") if strengths else []),
        (ORACLE_HEAD, killers),
        (LEFT_HEAD, left),
        (PROOF_HEAD, proofs),
    ]
    return [table for table in shown if table[1]] if results else []


def _rows(results: Sequence[MutantResult], field: str) -> list[Row]:
    """One row for each value of a field, and one for all."""
    groups: dict[str, list[MutantResult]] = {}
    for result in sorted(results, key=lambda one: str(getattr(one, field))):
        groups.setdefault(getattr(result, field), []).append(result)
    return [_row(name, group) for name, group in groups.items()] + [_row("all", results)]


def _row(name: str, results: Sequence[MutantResult]) -> Row:
    counts, found = Counter(map(column, results)), score(results)
    low, high = found.interval
    rate = (f"{found.rate:.1%}", f"{low:.0%} to {high:.0%}") if found.counted else ("", "")
    return (name, str(len(results)), *(str(counts[name]) for name in COLUMNS), *rate)
