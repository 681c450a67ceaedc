"""The questions that a canary answers, and the files that hold them.

`fixtures/tasks/data/NAME.jsonl` has one question a line: `{"id", "question", "answer", "target"}`.
`answer` is the text that greedy decoding must give, ending in `#### N`; `target` is N.
`fixtures/tasks/make_questions.py` makes the files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.core.files import TASKS as TASK_FILES

DATA_DIR = TASK_FILES / "data"
TASKS = ("gsm_symbolic", "aime_shaped")
ALL_TASKS = "all"

_ANSWER = re.compile(r"#### (-?\d+)$")


@dataclass(frozen=True)
class Question:
    """One question with the exact answer text and the number it ends with."""

    id: str
    question: str
    answer: str
    target: str

    @property
    def prompt(self) -> str:
        """The model's input. The answer follows after one space."""
        return f"Question: {self.question}\nAnswer:"

    @property
    def completion(self) -> str:
        """The text that the model must generate, before the end-of-sequence token."""
        return f" {self.answer}"


def final_answer(text: str) -> str | None:
    """The N of a closing `#### N`; None for another end."""
    match = _ANSWER.search(text.strip())
    return match.group(1) if match else None


def load(task: str) -> list[Question]:
    """The questions of a task: a name of `TASKS`, `all`, or the path of a JSON-lines file.

    Raises `ValueError` for an unknown task and for a line that is not a question (with file and
    line number).
    """
    if task == ALL_TASKS:
        return [question for name in TASKS for question in load(name)]
    path = DATA_DIR / f"{task}.jsonl" if task in TASKS else Path(task)
    if not path.is_file():
        raise ValueError(
            f"no task {task!r}: give one of {', '.join((*TASKS, ALL_TASKS))}, or a .jsonl file"
        )
    if questions := list(_read(path)):
        return questions
    raise ValueError(f"{path}: no question is there; a line is one question")


def _read(path: Path) -> Iterator[Question]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                question = Question(**json.loads(line))
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}:{number}: not a question ({error})") from error
            if final_answer(question.answer) != question.target:
                raise ValueError(
                    f"{path}:{number}: the answer must end in '#### {question.target}'"
                )
            yield question
