"""What an accuracy run leaves behind: plain, frozen, without torch; the same in memory, on disk and in a report."""

from __future__ import annotations

from pydantic import Field

from harness.core.params import Record
from harness.core.records import (
    AccuracyJudgement,
    AccuracyLimits,
    AccuracyRecord,
    BaselineUse,
    EpochAccuracy,
    Flips,
    Interval,
    OutcomeGrid,
)

__all__ = [
    "ANSWER_CHARS",
    "AccuracyRecord",
    "BaselineUse",
    "EpochAccuracy",
    "Flips",
    "Interval",
    "Judgement",
    "Limits",
    "OutcomeGrid",
    "QuestionResult",
    "RunHeader",
]

ANSWER_CHARS = 200

# The record itself lies with the results of cases, which hold one; these are the names that this package uses.
Judgement = AccuracyJudgement
Limits = AccuracyLimits


class RunHeader(Record):
    """The first line of `accuracy.jsonl`: what was asked of whom. A run is resumed only under the same header."""

    schema_version: int = 1
    task: str
    filter: str
    model: str
    model_hash: str
    engine: str
    dtype: str
    seed: int
    num_epochs: int
    questions: tuple[str, ...]
    """Hashes in the task's own order."""
    deterministic: bool = False
    note: str = ""


class QuestionResult(Record):
    """What became of one question in one epoch. A run holds exactly one for each of both."""

    epoch: int
    question: str
    position: int = Field(description="place of the question in the epoch's order")
    correct: bool
    scores: dict[str, float] = Field(default={}, description="lm-eval's metric under each of the task's filters")
    answer: str = Field(default="", description=f"the first {ANSWER_CHARS} characters")
    answer_hash: str = ""
    num_tokens: int = 0
    finish: str = ""
    num_attempts: int = 1
    unanswered: str | None = None
    empty: bool = False
    unparsed: bool = False
    invalid_tokens: bool = False
