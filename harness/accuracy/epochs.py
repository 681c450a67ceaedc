"""The loop over epochs: one running model answers the same questions, in a new seeded order each
time.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.accuracy.acceptance import CountsDrafts, Drafts, keep_drafts
from harness.accuracy.answer_log import (
    ANSWER_CHARS,
    FILE_NAME,
    KEPT_TOKENS,
    AccuracyRun,
    AnswerLog,
    QuestionResult,
    RunHeader,
)
from harness.accuracy.backends import Answer, AnswerBackend
from harness.accuracy.cache_hits import CountsHits, Hits, keep_hits
from harness.accuracy.tasks import Task
from harness.core.errors import HarnessError

REPEATS_FILE = "repeats.json"
"""In a run directory: the numbers of the prompts with another second answer."""


@dataclass(frozen=True)
class Progress:
    """The state of an epoch after an answer."""

    epoch: int
    num_epochs: int
    answered: int
    num_questions: int
    num_correct: int
    unanswered: int
    num_tokens: int = 0
    """Tokens of this epoch that this run generated, in `milliseconds`. Grading does not count."""
    milliseconds: int = 0


def unrepeated(alone: AnswerBackend, count: int) -> list[int]:
    """The numbers of the prompts, of `count`, to which a backend gives another greedy answer the
    second time.

    `alone` asks one prompt at a time, so that no batch changes its rounding.
    """
    prompts = [f"Question: {n}. What is {n} plus {7 * n}?\nAnswer:" for n in range(count)]
    first, second = (
        [answer.text for answer in alone.generate(prompts, max_tokens=32, stop=())]
        for _ in range(2)
    )
    return [number for number, (a, b) in enumerate(zip(first, second, strict=True)) if a != b]


def run_epochs(
    backend: AnswerBackend,
    task: Task,
    directory: Path,
    *,
    num_epochs: int,
    seed: int = 0,
    max_tokens: int | None = None,
    resume: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> AccuracyRun:
    """Ask every question in every epoch; append each result to ``directory/accuracy.jsonl`` at
    once.

    With `resume`, questions with a result in the file are not asked again. A run that ends early
    keeps its answers. Raises InputError when the file belongs to another run.
    """
    # lm-eval takes seconds to import; `mla-harness --help` must not.
    from harness.accuracy.lm import BackendLM

    started = time.perf_counter()
    lm = BackendLM(backend, max_tokens=max_tokens)
    header = make_header(backend, task, seed=seed, num_epochs=num_epochs)
    path = directory / FILE_NAME
    log = AnswerLog(path, header, resume=resume)
    for epoch in range(1, num_epochs + 1):
        before = _drafts(backend)
        hits_before = _hits(backend)
        _EpochOf(lm, task, log, header, epoch, on_progress).run()
        after = _drafts(backend)
        if before is not None and after is not None:
            keep_drafts(directory, epoch, after.since(before))
        hits_after = _hits(backend)
        if hits_before is not None and hits_after is not None:
            keep_hits(directory, epoch, hits_after.since(hits_before))
    return AccuracyRun(header, log.results, path, time.perf_counter() - started)


def _drafts(backend: AnswerBackend) -> Drafts | None:
    return backend.drafts() if isinstance(backend, CountsDrafts) else None


def _hits(backend: AnswerBackend) -> Hits | None:
    return backend.hits() if isinstance(backend, CountsHits) else None


def make_header(backend: AnswerBackend, task: Task, *, seed: int, num_epochs: int) -> RunHeader:
    return RunHeader(
        task=task.name,
        filter=task.filter,
        seed=seed,
        num_epochs=num_epochs,
        questions=task.questions,
        **asdict(backend.identity),
    )


def epoch_order(num_questions: int, seed: int, epoch: int) -> list[int]:
    """The order of one epoch: a permutation of positions, drawn from the seed and the epoch's
    number.
    """
    order = list(range(num_questions))
    # Another order in each epoch: a bug that follows the batch then hits other questions.
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return order


@dataclass
class _EpochOf:
    """One epoch of a run.

    One call of `lm_eval.evaluate` asks the questions that have no result yet.
    """

    lm: Any
    task: Task
    log: AnswerLog
    header: RunHeader
    epoch: int
    on_progress: Callable[[Progress], None] | None
    num_tokens: int = 0

    def __post_init__(self) -> None:
        order = epoch_order(len(self.task.questions), self.header.seed, self.epoch)
        self.place = {question: place for place, question in enumerate(order)}
        self.left = [
            i
            for i, name in enumerate(self.task.questions)
            if (self.epoch, name) not in self.log.results
        ]
        done = [result for (number, _), result in self.log.results.items() if number == self.epoch]
        self.answered = len(done)
        self.num_correct = sum(result.correct for result in done)
        self.unanswered = sum(result.unanswered is not None for result in done)
        self.seconds_before = self.lm.seconds_generating

    def run(self) -> None:
        """Ask, grade and store; then compare each stored grade with lm-eval's own."""
        if not self.left:
            return
        import lm_eval  # type: ignore[import-untyped]

        def place(request: Any) -> int:
            # lm-eval numbers the questions of one call from 0, and this call has those that are
            # left.
            return self.place[self.left[request.doc_id]]

        self.lm.order = lambda requests: sorted(
            range(len(requests)), key=lambda i: place(requests[i])
        )
        self.lm.on_answer = self._store
        tasks = {"tasks": {self.task.name: self.task.lm_eval_task}}
        # No bootstrap: its standard errors are not read.
        found = lm_eval.evaluate(
            self.lm, tasks, samples={self.task.name: self.left}, bootstrap_iters=0
        )
        # Grades are stored as answers come, to survive a kill. lm-eval's own must agree with them
        # in the end.
        self._check(found["samples"][self.task.name])

    def _store(self, instance: Any, answer: Answer) -> None:
        question = self.left[instance.doc_id]
        grade = self.task.grade(instance, answer.text)
        answered = answer.unanswered is None
        empty = answered and not answer.text.strip()
        result = QuestionResult(
            epoch=self.epoch,
            question=self.task.questions[question],
            position=self.place[question],
            correct=answered and grade.correct,
            scores=grade.scores,
            answer=answer.text[:ANSWER_CHARS],
            # The whole answer, as the stored text is cut.
            answer_hash=hashlib.sha256(answer.text.encode("utf-8", "surrogatepass")).hexdigest()[
                :12
            ],
            num_tokens=answer.num_tokens,
            finish=answer.finish,
            tokens=answer.tokens[:KEPT_TOKENS],
            logprobs=answer.logprobs[:KEPT_TOKENS],
            num_attempts=answer.num_attempts,
            unanswered=answer.unanswered,
            empty=empty,
            unparsed=answered and not empty and grade.unparsed,
            invalid_tokens=answer.had_invalid_tokens,
        )
        self.log.add(result)
        self.answered += 1
        self.num_correct += result.correct
        self.unanswered += not answered
        self.num_tokens += answer.num_tokens
        if self.on_progress:
            milliseconds = round(1e3 * (self.lm.seconds_generating - self.seconds_before))
            counts = (
                self.answered,
                len(self.task.questions),
                self.num_correct,
                self.unanswered,
                self.num_tokens,
            )
            self.on_progress(Progress(self.epoch, self.header.num_epochs, *counts, milliseconds))

    def _check(self, samples: list[dict[str, Any]]) -> None:
        for sample in samples:
            question = self.task.questions[sample["doc_id"]]
            stored = self.log.results[self.epoch, question]
            if stored.scores.get(sample["filter"]) != float(sample[self.task.metric]):
                raise HarnessError(
                    f"{FILE_NAME}: question {question} of epoch {self.epoch} is stored with another"
                    f" grade than lm-eval's under filter {sample['filter']}; the installed lm-eval"
                    " may not be the one supported"
                )
