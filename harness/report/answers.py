"""What the page shows of each question of an accuracy run: its words, its answers by epoch, and
where two answers part.

The script of the page makes a view of it when a reader asks for a question, so it is data, not
markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
"""StoredAnswers in a part at least; a share of fewer says nothing."""


@dataclass(frozen=True, slots=True)
class StoredAnswers:
    """The stored answers of a run, and the questions that they answer."""

    run: AccuracyRun
    questions: dict[str, AskedQuestion]

    @property
    def results(self) -> list[QuestionResult]:
        """All answered questions of all epochs."""
        return [one for one in self.run.results.values() if one.unanswered is None]


def answers_of(store: RunStore) -> StoredAnswers | None:
    """The answers in the folder of a run of `mla-harness epochs`; None for any other run.

    A file that cannot be read is left to the run's own verdict, which says so.
    """
    try:
        return StoredAnswers(read_run(store.path), read_questions(store.path))
    except (NoAnswers, InputError):
        return None


def shares_by_position(found: StoredAnswers) -> list[tuple[str, float, str]]:
    """Accuracy by the place of a question in its epoch, over all epochs: label, share, sentence.

    Every epoch has another order, so a fall here is of the server's state and not of hard
    questions: pages that are recycled late in an epoch, for example.
    """
    count = len(found.run.header.questions)
    # By place and not by time: servers answer at different speeds, and runs are to be compared.
    parts: list[list[bool]] = [[] for _ in range(NUM_PLACES)]
    for result in found.results:
        parts[min(result.position * NUM_PLACES // max(count, 1), NUM_PLACES - 1)].append(
            result.correct
        )
    bounds = [count * number // NUM_PLACES for number in range(NUM_PLACES + 1)]
    named = [(f"to {high}", own) for high, own in zip(bounds[1:], parts, strict=True)]
    return _shares(named, "questions at places up")


def shares_by_length(found: StoredAnswers) -> list[tuple[str, float, str]]:
    """Accuracy by the length of the answer in tokens, in parts with as many answers each."""
    results = sorted(
        (one for one in found.results if one.num_tokens), key=lambda one: one.num_tokens
    )
    named = []
    start = 0
    for number in range(NUM_PLACES):
        end = len(results) * (number + 1) // NUM_PLACES
        # StoredAnswers of one length stay together, so that no two parts have the same name.
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
    # A share of a few answers would look like a fall.
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


@dataclass(frozen=True, slots=True)
class Parting:
    """Where an answer parts from the first epoch's: the character, and the token if tokens are
    kept. The character is None where the texts part behind what is kept of them.
    """

    character: int | None
    token: int | None = None
    before: str = ""
    after: str = ""
    logprob_before: float | None = None
    logprob_after: float | None = None


@dataclass(frozen=True, slots=True)
class AnsweredEpoch:
    """A question in one epoch. `answer` is the place of its text in the question's `answers`."""

    epoch: int
    answer: int
    tokens: int
    finish: str
    place: int
    unanswered: str
    least_logprob: float | None
    mean_logprob: float | None
    parting: Parting | None


@dataclass(frozen=True, slots=True)
class AnsweredQuestion:
    """A question with its distinct answers, so that equal ones stand once in a page."""

    text: str
    target: str
    answers: tuple[str, ...]
    epochs: tuple[AnsweredEpoch, ...]

    @property
    def size(self) -> int:
        """About the characters of it in a page."""
        texts = (self.text, self.target, *self.answers)
        return sum(map(len, texts)) + 180 * len(self.epochs) + 60


def questions_of(found: StoredAnswers) -> dict[int, AnsweredQuestion]:
    """The questions by number that a page has room for, those that flipped or changed first."""
    asked: dict[int, AnsweredQuestion] = {}
    size = 0
    # The sort is stable, so both halves keep the order of the task.
    for number, name in sorted(_numbered(found), key=lambda pair: not _is_unlike(found, pair[1])):
        question = _question(found, name)
        size += question.size
        if size <= MOST_BYTES:
            asked[number] = question
    return asked


def _numbered(found: StoredAnswers) -> list[tuple[int, str]]:
    return list(enumerate(found.run.header.questions, start=1))


def _of_question(found: StoredAnswers, name: str) -> list[QuestionResult]:
    epochs = range(1, found.run.header.num_epochs + 1)
    results = (found.run.results.get((epoch, name)) for epoch in epochs)
    return [result for result in results if result is not None]


def _is_unlike(found: StoredAnswers, name: str) -> bool:
    """Whether a question was wrong, unusable, or answered in two ways: what a reader looks for."""
    results = _of_question(found, name)
    return len({one.answer_hash for one in results}) > 1 or not all(one.correct for one in results)


def _question(found: StoredAnswers, name: str) -> AnsweredQuestion:
    question = found.questions.get(name)
    results = _of_question(found, name)
    answers = tuple(dict.fromkeys(printable(result.answer) for result in results))
    return AnsweredQuestion(
        text=printable(question.text) if question else "",
        target=printable(question.target) if question else "",
        answers=answers,
        epochs=tuple(_epoch(result, results[0], answers) for result in results),
    )


def _epoch(
    result: QuestionResult, first: QuestionResult, answers: tuple[str, ...]
) -> AnsweredEpoch:
    # A server may leave out the log probability of single tokens.
    known = [value for value in result.logprobs if value is not None]
    return AnsweredEpoch(
        epoch=result.epoch,
        answer=answers.index(printable(result.answer)),
        tokens=result.num_tokens,
        finish=printable(result.finish),
        place=result.position + 1,
        unanswered=printable(result.unanswered or ""),
        least_logprob=round(min(known), 4) if known else None,
        mean_logprob=round(sum(known) / len(known), 4) if known else None,
        parting=_parting(first, result) if result.answer_hash != first.answer_hash else None,
    )


def _parting(first: QuestionResult, result: QuestionResult) -> Parting:
    character = _first_difference(first.answer, result.answer)
    token = _first_difference(first.tokens, result.tokens)
    # One answer is the beginning of the other: there is no token to set beside the end.
    if token is None or token >= min(len(first.tokens), len(result.tokens)):
        return Parting(character)
    return Parting(
        character,
        token=token + 1,
        before=printable(first.tokens[token]),
        after=printable(result.tokens[token]),
        logprob_before=first.logprobs[token],
        logprob_after=result.logprobs[token],
    )


def _first_difference(first: Sequence[str], second: Sequence[str]) -> int | None:
    """The first place at which two texts or lists differ; None if none is seen."""
    for place, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return place
    return min(len(first), len(second)) if len(first) != len(second) else None
