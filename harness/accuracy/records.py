"""What an accuracy run leaves on disk: plain, frozen, without torch."""

from __future__ import annotations

from pydantic import Field

from harness.core.params import Record

ANSWER_CHARS = 200


class Measured(Record):
    """The task and the model of a measurement."""

    schema_version: int = 1
    task: str
    filter: str
    model: str
    model_hash: str
    engine: str
    dtype: str


class RunHeader(Measured):
    """The first line of `accuracy.jsonl`. A run is resumed only under the same header."""

    seed: int
    num_epochs: int
    questions: tuple[str, ...]
    """Hashes in the task's own order."""
    deterministic: bool = False
    note: str = ""


class QuestionResult(Record):
    """One question in one epoch. A run holds exactly one result for each pair."""

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
