"""Mutants: what is asked of their trials, and what became of each."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from harness.core.cases import Job
from harness.core.params import Record
from harness.core.records import SCHEMA_VERSION

Status = Literal["killed", "survived", "not exercised", "equivalent", "not reached", "error"]


class Trials(Record):
    """The request: `count` mutants drawn from `seed`, tried on the cases of `jobs` by `workers` processes.

    A resumed run leaves out the mutants `done`, by their names. With `conditions` a mutant is no change of code, but an
    error of the kernels under a combination of conditions. With `proves` drawn inputs try to tell what no case does.
    """

    jobs: tuple[Job, ...]
    count: int
    seed: int
    workers: int
    done: tuple[str, ...] = ()
    conditions: bool = False
    proves: bool = False


class SurveyedCase(Record):
    """A case on unchanged code. `steps` counts executed lines of the files under test, a cost without a clock."""

    id: str
    seconds: float = 0.0
    steps: int = 0
    lines: dict[str, tuple[int, ...]] = Field(default={})
    why_not: str = Field(default="", description="why it cannot judge mutants: it does not pass, or its outputs vary")


class MutantResult(Record):
    """What became of one mutant.

    `killed` by an oracle in `case`; `survived`: outputs of `case` changed and no oracle saw it; `not exercised`: no
    output of the `num_cases` cases changed; `equivalent`: nor did any of a property run, its `proof`; `not reached`: no
    case executes the line; `error`: a case could not be judged, and none failed.
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
