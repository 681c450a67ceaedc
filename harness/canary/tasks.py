"""The questions that a canary answers, and the files that hold them.

`fixtures/tasks/data/NAME.jsonl` has one question a line: `{"id", "question", "answer", "target"}`. `answer` is the text
that greedy decoding must give, ending in `#### N`; `target` is N. `write(gsm_symbolic(), path)` makes a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.canary import aime
from harness.core.files import TASKS as TASK_FILES

DATA_DIR = TASK_FILES / "data"
TASKS = ("gsm_symbolic", "aime_shaped")
ALL_TASKS = "all"

GSM_SYMBOLIC_SIZE = 1319  # as many as the test split of GSM8K
GSM_SYMBOLIC_SEED = 42
AIME_SHAPED_SIZE = 30
AIME_SHAPED_SEED = 2026

_INSTRUCTION = " Give the result as your final answer. Do not include units."
_ANSWER = re.compile(r"#### (-?\d+)$")
# Characters of a worked answer before its last line. A longer text would cost training time and add no sensitivity.
_MAX_WORKING_CHARS = 150


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

    Raises `ValueError` for an unknown task and for a line that is not a question (with file and line number).
    """
    if task == ALL_TASKS:
        return [question for name in TASKS for question in load(name)]
    path = DATA_DIR / f"{task}.jsonl" if task in TASKS else Path(task)
    if not path.is_file():
        raise ValueError(f"no task {task!r}: give one of {', '.join((*TASKS, ALL_TASKS))}, or a .jsonl file")
    return list(_read(path))


def _read(path: Path) -> Iterator[Question]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                question = Question(**json.loads(line))
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}:{number}: not a question ({error})") from error
            if final_answer(question.answer) != question.target:
                raise ValueError(f"{path}:{number}: the answer must end in '#### {question.target}'")
            yield question


def aime_shaped() -> list[Question]:
    """The contest-shaped questions, made from their seed."""
    made = aime.problems(AIME_SHAPED_SIZE, AIME_SHAPED_SEED)
    return [
        Question(f"aime_shaped-{i:02}", question, "\n".join([*working, f"#### {n}"]), str(n))
        for i, (question, working, n) in enumerate(made)
    ]


def gsm_symbolic() -> list[Question]:
    """Distinct questions of reasoning-gym's gsm_symbolic (arXiv 2410.05229, 2505.24760) with whole-number answers.

    Raises `ModuleNotFoundError` without the package reasoning_gym.
    """
    import reasoning_gym

    source = reasoning_gym.create_dataset("gsm_symbolic", size=2 * GSM_SYMBOLIC_SIZE, seed=GSM_SYMBOLIC_SEED)
    questions: dict[str, Question] = {}
    for entry in source:
        text = entry["question"].removesuffix(_INSTRUCTION)
        if text in questions or not re.fullmatch(r"-?\d+", entry["answer"]):
            continue
        answer = shorten(entry["metadata"]["answer_cot"], entry["answer"])
        questions[text] = Question(f"gsm_symbolic-{len(questions):04}", text, answer, entry["answer"])
        if len(questions) == GSM_SYMBOLIC_SIZE:
            break
    return list(questions.values())


def shorten(working: str, target: str) -> str:
    """Keep the last lines of a worked answer that fit into the limit, and close with `#### target`."""
    kept: list[str] = []
    for line in reversed([line.strip() for line in working.splitlines() if not line.startswith("####")]):
        if kept and sum(map(len, kept)) + len(line) > _MAX_WORKING_CHARS:
            break
        kept.insert(0, line)
    return "\n".join([*kept, f"#### {target}"])


def write(questions: Iterable[Question], path: Path) -> None:
    """Write questions as JSON lines."""
    lines = (json.dumps(asdict(question), ensure_ascii=False) + "\n" for question in questions)
    path.write_text("".join(lines), encoding="utf-8")
