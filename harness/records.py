"""The records that the stages hand to one another: plain, frozen, and the same in memory and on disk."""

from __future__ import annotations

from enum import Enum
from typing import Any

from pydantic import BaseModel, ConfigDict

SCHEMA_VERSION = 1


class Record(BaseModel):
    """A frozen value that refuses unknown fields; `model_dump_json` and `model_validate_json` round-trip it."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Verdict(str, Enum):
    """How a case ended. `skip` is never a pass, and `error` is the harness's own fault."""

    PASS = "pass"
    FAIL = "fail"
    CRASH = "crash"
    SKIP = "skip"
    ERROR = "error"


class PoisonPlan(Record):
    """Which sites are filled with which patterns; the first pattern is the main one."""

    patterns: tuple[str, ...] = ("nan",)
    sites: tuple[str, ...] = ()
    strict: bool = False


class Case(Record):
    """One point of a scenario's matrix. `id` alone reproduces it: the seed is derived from the id."""

    id: str
    scenario: str
    system: str
    refs: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    params: dict[str, Any] = {}
    poison: PoisonPlan = PoisonPlan()
    oracles: tuple[str, ...] = ()
    seed: int = 0


class Job(Record):
    """What a worker is asked to do: one case, with or without a fault, perhaps with other poisoned sites."""

    key: str
    case: Case
    fault: str | None = None
    sites: tuple[str, ...] | None = None
    """Sites to poison instead of the case's own; the others get friendly memory. Used to find the one to blame."""
    device: str = "cpu"
    plugins: tuple[str, ...] = ()
    timeout_seconds: float = 60.0


class Finding(Record):
    """One thing an oracle saw."""

    oracle: str
    site: str | None = None
    tensor: str = ""
    where: str = ""
    bits: str | None = None
    message: str = ""


class CaseResult(Record):
    """What became of one job. Every planned job ends in exactly one of these."""

    schema_version: int = SCHEMA_VERSION
    key: str
    id: str
    scenario: str
    refs: tuple[str, ...] = ()
    fault: str | None = None
    sites: tuple[str, ...] | None = None
    verdict: Verdict
    seconds: float = 0.0
    reason: str = ""
    findings: tuple[Finding, ...] = ()
    looked_at: dict[str, int] = {}
    """Elements each oracle judged; an oracle that looked at nothing makes the case an error."""
    log: str = ""
    """The tail of the worker's standard error, kept for crashes and errors."""


class Blame(Record):
    """Which memory was to blame for a failure, and how that was found."""

    sites: tuple[str, ...] = ()
    how: str = ""
    trials: dict[str, str] = {}
    """Poisoned set of sites -> verdict of that trial, in the order tried."""


class FaultResult(Record):
    """What became of one fault put back on purpose."""

    schema_version: int = SCHEMA_VERSION
    fault: str
    scenario: str
    case: str
    ref: str = ""
    caught: bool
    by: tuple[str, ...] = ()
    blamed: tuple[str, ...] = ()
    expected_by: str
    expected_blame: tuple[str, ...] = ()
    seconds: float = 0.0
    reason: str = ""
    how: str = ""
    findings: tuple[Finding, ...] = ()
