from __future__ import annotations

import importlib.util
import json
import math
import re
from pathlib import Path

import pytest

from canaries import tasks
from harness.core.files import TASKS
from tests.transcripts import Approved

_SPEC = importlib.util.spec_from_file_location("make_questions", TASKS / "make_questions.py")
assert _SPEC is not None and _SPEC.loader is not None
making = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(making)


@pytest.mark.parametrize(
    ("task", "size"), [("gsm_symbolic", 1319), ("aime_shaped", 30), ("all", 1349)]
)
def test_a_task_has_its_fixed_number_of_different_questions(task: str, size: int) -> None:
    questions = tasks.load(task)
    assert (
        len(questions)
        == len({q.question for q in questions})
        == len({q.id for q in questions})
        == size
    )


def test_every_answer_ends_in_its_target() -> None:
    assert all(tasks.final_answer(q.completion) == q.target for q in tasks.load("all"))


def test_the_contest_shaped_file_is_what_its_seed_makes() -> None:
    assert tasks.load("aime_shaped") == making.aime_shaped()


def test_the_gsm_symbolic_file_is_what_its_seed_makes() -> None:
    pytest.importorskip("reasoning_gym", exc_type=ImportError)
    assert tasks.load("gsm_symbolic") == making.gsm_symbolic()


def test_contest_shaped_answers_lie_between_0_and_999() -> None:
    assert all(0 <= answer <= 999 for _, _, answer in making.problems(80, seed=1))


@pytest.mark.parametrize("seed", range(3))
def test_contest_shaped_answers_are_right_where_python_can_tell(seed: int) -> None:
    for question, _, answer in making.problems(50, seed):
        numbers = [int(number) for number in re.findall(r"\d+", question)]
        if re.search(r"when \d+\^\d+ is", question):
            assert pow(*numbers) == answer
        elif question.startswith("How many positive integers up to"):
            limit, p, q = numbers
            assert sum(n % p == 0 or n % q == 0 for n in range(1, limit + 1)) == answer
        elif question.startswith("How many pairs"):
            a, b, total = numbers
            assert (
                sum((total - a * x) % b == 0 and total > a * x for x in range(1, total)) == answer
            )
        elif question.startswith("How often"):
            digit, _, limit = numbers
            assert sum(str(n).count(str(digit)) for n in range(1, limit + 1)) == answer
        elif question.startswith("Find the smallest"):
            remainders, moduli = numbers[:3], numbers[3:]
            assert [answer % m for m in moduli] == remainders
            assert answer <= math.prod(moduli)


def test_prompts_and_answers_join_with_one_space(approved: Approved) -> None:
    question = tasks.Question("x-0", "How many?", "1 + 1 = 2\n#### 2", "2")
    approved(question.prompt + question.completion)


def test_a_long_worked_answer_keeps_its_last_lines(approved: Approved) -> None:
    working = "\n".join(["first " * 20, "second " * 15, "third", "#### 3.0"])
    approved(making.shorten(working, "3"))


@pytest.mark.parametrize("text", ["#### 12 apples", "12", "#### 1.5", ""])
def test_text_without_a_closing_number_has_no_final_answer(text: str) -> None:
    assert tasks.final_answer(text) is None


def test_an_unknown_task_is_refused_with_the_known_ones(approved: Approved) -> None:
    with approved.raises(ValueError):
        tasks.load("gsm9k")


def test_a_file_without_a_question_and_a_broken_line_are_named(
    tmp_path: Path, approved: Approved
) -> None:
    path = tmp_path / "mine.jsonl"
    path.touch()
    with approved.raises(ValueError):
        tasks.load(str(path))
    good = {"id": "m-0", "question": "?", "answer": "#### 1", "target": "1"}
    path.write_text(json.dumps(good) + "\n" + json.dumps(good | {"target": "2"}) + "\n")
    with approved.raises(ValueError):
        tasks.load(str(path))
