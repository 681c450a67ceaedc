from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from harness.accuracy.answer_log import AccuracyRun, QuestionResult, RunHeader
from harness.accuracy.backends import Answer, Identity, OnAnswer
from harness.accuracy.tasks import Task, load_task


class ScriptedBackend:
    """Answers by a function of (number of the call, prompt), and notes which prompts it was asked
    in which call.
    """

    def __init__(self, reply: Callable[[int, str], Answer], deterministic: bool = False) -> None:
        self.reply = reply
        self.calls: list[list[str]] = []
        self.limits: list[tuple[int, tuple[str, ...]]] = []
        self.identity = Identity("scripted", "none", "float32", "sha256:00", deterministic)

    def generate(
        self,
        prompts: Sequence[str],
        *,
        max_tokens: int,
        stop: Sequence[str],
        on_answer: OnAnswer | None = None,
    ) -> list[Answer]:
        self.calls.append([])
        self.limits.append((max_tokens, tuple(stop)))
        answers = []
        for position, prompt in enumerate(prompts):
            self.calls[-1].append(prompt)
            answers.append(self.reply(len(self.calls), prompt))
            if on_answer:
                on_answer(position, answers[-1])
        return answers

    def close(self) -> None:
        pass


def write_questions(directory: Path, number: int) -> None:
    """A gsm_symbolic.jsonl of `number` sums; question i is i + i."""
    lines = [
        {
            "id": str(i),
            "question": f"What is {i} + {i}?",
            "answer": f"#### {2 * i}",
            "target": str(2 * i),
        }
        for i in range(number)
    ]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "gsm_symbolic.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines)
    )


def solve(prompt: str) -> str:
    """The right answer to one of those questions."""
    number = int(prompt.split("What is ")[1].split(" ")[0])
    return f" It is {2 * number}.\n#### {2 * number}"


@pytest.fixture
def sums(tmp_path: Path) -> Task:
    write_questions(tmp_path / "data", 12)
    return load_task("gsm_symbolic", tmp_path / "work", data_dir=tmp_path / "data")


@pytest.fixture
def perfect() -> ScriptedBackend:
    return ScriptedBackend(
        lambda call, prompt: Answer(solve(prompt), num_tokens=5), deterministic=True
    )


@pytest.fixture
def scripted() -> type[ScriptedBackend]:
    return ScriptedBackend


@pytest.fixture
def right_answer() -> Callable[[str], str]:
    return solve


MEASURED = {
    "task": "gsm_symbolic",
    "filter": "strict-match",
    "model": "toy",
    "model_hash": "sha256:00",
    "engine": "engine",
    "dtype": "float32",
}
"""What a stored run and its baseline have in common."""


@pytest.fixture
def stored_run(tmp_path: Path) -> Callable[..., AccuracyRun]:
    """A run made of strings, one an epoch:

    `1` right, `0` wrong, `u` unanswered, `e` empty, `p` unparsed, `i` bad.
    """

    def make(*rows: str, deterministic: bool = False, **fields: object) -> AccuracyRun:
        questions = tuple(f"q{i:04}" for i in range(len(rows[0])))
        own = {
            "seed": 0,
            "num_epochs": len(rows),
            "questions": questions,
            "deterministic": deterministic,
        }
        header = RunHeader.model_validate(MEASURED | own | fields)
        results = {}
        for epoch, row in enumerate(rows, start=1):
            for position, (question, mark) in enumerate(zip(questions, row, strict=True)):
                if mark != ".":
                    results[epoch, question] = QuestionResult(
                        epoch=epoch,
                        question=question,
                        position=position,
                        correct=mark == "1",
                        answer_hash=mark,
                        unanswered="HTTP 500 (5 attempts)" if mark == "u" else None,
                        empty=mark == "e",
                        unparsed=mark == "p",
                        invalid_tokens=mark == "i",
                    )
        return AccuracyRun(header, results, tmp_path / "accuracy.jsonl")

    return make
