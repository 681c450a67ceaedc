"""`accuracy.jsonl`: a header, and one line for each question and epoch, written as soon as its
answer arrives.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, TypeAdapter

from harness.core.errors import InputError
from harness.core.files import write_atomic
from harness.core.params import Record
from harness.core.stored import (
    NoFile,
    append_line,
    read_json,
    read_lines,
    record_of,
    value_of,
)

ANSWER_CHARS = 200
QUESTION_CHARS = 2000
KEPT_TOKENS = 256
"""Tokens of an answer whose log probabilities are kept: 1,319 questions of five epochs stay below
30 MB.
"""
QUESTIONS_FILE = "questions.json"
"""In a run directory of `mla-harness epochs`: what the hashes of the questions stand for."""
MEASURED_VERSION = 1
"""The schema of the files of a measurement and of baselines, which people keep in a repository."""


class Measured(Record):
    schema_version: int = MEASURED_VERSION
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
    scores: dict[str, float] = Field(
        default={}, description="lm-eval's metric under each of the task's filters"
    )
    answer: str = Field(default="", description=f"the first {ANSWER_CHARS} characters")
    answer_hash: str = ""
    num_tokens: int = 0
    finish: str = ""
    num_attempts: int = 1
    unanswered: str | None = None
    empty: bool = False
    unparsed: bool = False
    invalid_tokens: bool = False
    tokens: tuple[str, ...] = Field(
        default=(), description=f"the first {KEPT_TOKENS} tokens, with --logprobs"
    )
    logprobs: tuple[float | None, ...] = Field(
        default=(), description="their log probabilities; null is none"
    )


class AskedQuestion(Record):
    """The words behind the hash of a question."""

    text: str = Field(description=f"the first {QUESTION_CHARS} characters, without examples")
    target: str = Field(default="", description="the right answer")


_QUESTIONS: TypeAdapter[dict[str, AskedQuestion]] = TypeAdapter(dict[str, AskedQuestion])

FILE_NAME = "accuracy.jsonl"


class NoAnswers(InputError):
    """A run folder holds no answers yet."""


@dataclass(frozen=True)
class AccuracyRun:
    """A stored run: the header, and the results by (epoch, question hash)."""

    header: RunHeader
    results: dict[tuple[int, str], QuestionResult]
    path: Path
    seconds: float = 0.0

    def epoch(self, number: int) -> list[QuestionResult]:
        """The results of one epoch in the task's order, without the questions that were not asked
        yet.
        """
        found = (self.results.get((number, question)) for question in self.header.questions)
        return [result for result in found if result is not None]

    def changed(self, number: int) -> set[str]:
        """The questions whose answer in an epoch has another text than in the first epoch.

        A question that the first epoch lacks has nothing to differ from.
        """
        first = {result.question: result.answer_hash for result in self.epoch(1)}
        return {
            one.question
            for one in self.epoch(number)
            if first.get(one.question, one.answer_hash) != one.answer_hash
        }


class AnswerLog:
    """The log of a run that goes on.

    Each line is in the file at once: a SIGKILL loses no answer that was counted.
    """

    def __init__(self, path: Path, header: RunHeader, *, resume: bool = False) -> None:
        self._path = path
        self.results = dict[tuple[int, str], QuestionResult]()
        if os.path.lexists(path) and path.lstat().st_size:
            if not resume:
                raise InputError(
                    f"{path}: holds a run already; choose another --out, or continue it with"
                    " --resume"
                )
            self._continue(path, header)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            append_line(path, header.model_dump_json())

    def add(self, result: QuestionResult) -> None:
        """Store one result.

        Raises AssertionError for a second result of a question in one epoch.
        """
        key = (result.epoch, result.question)
        if key in self.results:
            raise AssertionError(
                f"question {result.question} was answered twice in epoch {result.epoch}"
            )
        # An answer may hold lone surrogates, which UTF-8 cannot encode.
        row = result.model_dump(mode="json")
        if not result.tokens:
            # Most runs ask for no log probabilities.
            del row["tokens"], row["logprobs"]
        append_line(self._path, json.dumps(row, allow_nan=False))
        self.results[key] = result

    def _continue(self, path: Path, header: RunHeader) -> None:
        before, results = read_log(path)
        for field in RunHeader.model_fields:
            old = getattr(before, field)
            new = getattr(header, field)
            # A run may go on with more epochs than it began with.
            if old != new and field != "num_epochs":
                shown = (
                    "other questions" if field == "questions" else f"{field} {old!r}, now {new!r}"
                )
                raise InputError(f"{path}: cannot be resumed: it was run with {shown}")
        self.results.update(results)


def read_log(path: Path) -> tuple[RunHeader, dict[tuple[int, str], QuestionResult]]:
    """Header and results by (epoch, question), without a line torn by a kill.

    Raises InputError for another file.

    NoAnswers: the file is not there, or has no line that can be read.
    """
    lines = read_lines(path)
    first = next(lines, None)
    if first is None:
        raise NoAnswers(f"{path}: no accuracy run; start one with `mla-harness epochs`")
    if not isinstance(first, dict) or "questions" not in first:
        raise InputError(
            f"{path}: damaged: its first line is no header; measure again with `mla-harness epochs`"
        )
    header = record_of(RunHeader, first, path)
    results: dict[tuple[int, str], QuestionResult] = {}
    for line in lines:
        row = record_of(QuestionResult, line, path, versioned=False)
        # The first line of a question is the one that was counted.
        results.setdefault((row.epoch, row.question), row)
    return header, results


def read_run(directory: Path) -> AccuracyRun:
    """The run in `directory`, finished or not. Raises InputError when there is none."""
    path = directory / FILE_NAME
    return AccuracyRun(*read_log(path), path)


def keep_questions(directory: Path, questions: dict[str, AskedQuestion]) -> None:
    """Store what the hashes of a run's questions stand for, for readers of its report."""
    text = json.dumps({name: asked.model_dump() for name, asked in questions.items()})
    write_atomic(directory / QUESTIONS_FILE, text)


def read_questions(directory: Path) -> dict[str, AskedQuestion]:
    """Hash -> its question; empty for a run that stored none."""
    file = directory / QUESTIONS_FILE
    try:
        return value_of(_QUESTIONS, read_json(file), file)
    except NoFile:
        return {}
