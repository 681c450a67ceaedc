"""What the page shows of each question of an accuracy run: its words, its answers by epoch, and
where two answers part.

The script of the page makes a view of it when a reader asks for a question, so it is data, not
markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.accuracy.answer_log import (
    AccuracyRun,
    AskedQuestion,
    NoAnswers,
    QuestionResult,
    read_questions,
    read_run,
)
from harness.core.errors import InputError
from harness.report.wording import printable
from harness.store.run_folder import RunStore

MOST_BYTES = 900_000
"""Characters of questions and answers in a page. Questions that flipped or changed come first; a
page of 1,319 questions stays below 3 MB.
"""
NUM_PLACES = 8
"""Parts of an epoch, or of the answers by length, whose accuracy is compared."""
FEWEST = 5
"""Answers in a part at least; a share of fewer says nothing."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The stored answers of a run, and the questions that they answer."""

    run: AccuracyRun
    questions: dict[str, AskedQuestion]

    @property
    def results(self) -> list[QuestionResult]:
        """All answered questions of all epochs."""
        return [one for one in self.run.results.values() if one.unanswered is None]


def answers_of(store: RunStore) -> Answers | None:
    """The answers in the folder of a run of `mla-harness epochs`; None for any other run.

    A file that cannot be read is left to the run's own verdict, which says so.
    """
    try:
        return Answers(read_run(store.path), read_questions(store.path))
    except (NoAnswers, InputError):
        return None


def shares_by_position(found: Answers) -> list[tuple[str, float, str]]:
    """Accuracy by the place of a question in its epoch, over all epochs: label, share, sentence.

    Every epoch has another order, so a fall here is of the server's state and not of hard
    questions: pages that are recycled late in an epoch, for example.
    """
    count = len(found.run.header.questions)
    parts: list[list[bool]] = [[] for _ in range(NUM_PLACES)]
    for result in found.results:
        parts[min(result.position * NUM_PLACES // max(count, 1), NUM_PLACES - 1)].append(
            result.correct
        )
    bounds = [count * number // NUM_PLACES for number in range(NUM_PLACES + 1)]
    named = [(f"to {high}", own) for high, own in zip(bounds[1:], parts, strict=True)]
    return _shares(named, "questions at places up")


def shares_by_length(found: Answers) -> list[tuple[str, float, str]]:
    """Accuracy by the length of the answer in tokens, in parts with as many answers each."""
    results = sorted(
        (one for one in found.results if one.num_tokens), key=lambda one: one.num_tokens
    )
    named = []
    start = 0
    for number in range(NUM_PLACES):
        end = len(results) * (number + 1) // NUM_PLACES
        # Answers of one length stay together, so that no two parts have the same name.
        while 0 < end < len(results) and results[end].num_tokens == results[end - 1].num_tokens:
            end += 1
        if end <= start:
            continue
        own = results[start:end]
        low, high = own[0].num_tokens, own[-1].num_tokens
        label = str(low) if low == high else f"{low} to {high}"
        named.append((label, [one.correct for one in own]))
        start = end
    return _shares(named, "answers with tokens")


def _shares(parts: Sequence[tuple[str, Sequence[bool]]], what: str) -> list[tuple[str, float, str]]:
    """A row for each part with enough answers; none if that leaves fewer than two."""
    rows = [
        (
            label,
            sum(own) / len(own),
            f"{what} {label}: {sum(own)} of {len(own)} right",
        )
        for label, own in parts
        if len(own) >= FEWEST
    ]
    return rows if len(rows) > 1 else []


def data_of(found: Answers) -> dict[str, Any]:
    """`{asked: {number: question}, left_out: N}` for the script of the page.

    A question is `{text, target, epochs: [row...]}`. A row is one epoch: its answer (the place in
    `answers`, so that equal ones stand once), tokens, how it finished, its place in the order, the
    reason for no answer, its log probabilities, and the token or character where it parts from
    the first epoch.
    """
    asked: dict[str, Any] = {}
    size = 0
    left_out = 0
    for number, name in sorted(_numbered(found), key=lambda pair: not _is_unlike(found, pair[1])):
        row = _question(found, name)
        size += _size(row)
        if size > MOST_BYTES:
            left_out += 1
            continue
        asked[str(number)] = row
    return {"asked": asked, "left_out": left_out}


def _numbered(found: Answers) -> list[tuple[int, str]]:
    return list(enumerate(found.run.header.questions, start=1))


def _of_question(found: Answers, name: str) -> list[QuestionResult]:
    epochs = range(1, found.run.header.num_epochs + 1)
    results = (found.run.results.get((epoch, name)) for epoch in epochs)
    return [result for result in results if result is not None]


def _is_unlike(found: Answers, name: str) -> bool:
    """Whether a question was wrong, unusable, or answered in two ways: what a reader looks for."""
    results = _of_question(found, name)
    return len({one.answer_hash for one in results}) > 1 or not all(one.correct for one in results)


def _question(found: Answers, name: str) -> dict[str, Any]:
    question = found.questions.get(name)
    results = _of_question(found, name)
    answers = list(dict.fromkeys(printable(result.answer) for result in results))
    first = results[0] if results else None
    return {
        "text": printable(question.text) if question else "",
        "target": printable(question.target) if question else "",
        "answers": answers,
        "epochs": [_epoch(result, first, answers) for result in results],
    }


def _epoch(
    result: QuestionResult, first: QuestionResult | None, answers: list[str]
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "epoch": result.epoch,
        "answer": answers.index(printable(result.answer)),
        "tokens": result.num_tokens,
        "finish": printable(result.finish),
        "place": result.position + 1,
    }
    if result.unanswered is not None:
        row["unanswered"] = printable(result.unanswered)
    known = [value for value in result.logprobs if value is not None]
    if known:
        row["least_logprob"] = round(min(known), 4)
        row["mean_logprob"] = round(sum(known) / len(known), 4)
    if first is not None and result.answer_hash != first.answer_hash:
        row |= _parting(first, result)
    return row


def _parting(first: QuestionResult, result: QuestionResult) -> dict[str, Any]:
    """Where an answer parts from the first epoch's: the token if tokens are kept, else the
    character. An answer that is as long as it is kept may part behind what is kept.
    """
    at = _first_difference(first.tokens, result.tokens)
    if at is not None and at < min(len(first.tokens), len(result.tokens)):
        return {
            "token": at + 1,
            "was": printable(first.tokens[at]),
            "is": printable(result.tokens[at]),
            "was_logprob": first.logprobs[at],
            "is_logprob": result.logprobs[at],
            "character": _first_difference(first.answer, result.answer),
        }
    return {"character": _first_difference(first.answer, result.answer)}


def _first_difference(first: Sequence[str], second: Sequence[str]) -> int | None:
    """The first place at which two texts or lists differ; None if none is seen."""
    for place, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return place
    return min(len(first), len(second)) if len(first) != len(second) else None


def _size(row: dict[str, Any]) -> int:
    texts = (row["text"], row["target"], *row["answers"])
    return sum(map(len, texts)) + 90 * len(row["epochs"]) + 60
