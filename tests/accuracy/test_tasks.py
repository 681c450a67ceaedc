from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.accuracy.tasks import (
    LEAST_OF_CANARY,
    Task,
    known_tasks,
    least_of_canary,
    load_task,
    question_hashes,
)
from harness.core.errors import InputError
from tests.transcripts import Approved


def test_the_known_tasks_are_the_projects_and_lm_evals() -> None:
    assert known_tasks() == [
        "aime24",
        "aime25",
        "aime_shaped",
        "drafts",
        "gsm8k",
        "gsm_symbolic",
        "recall",
        "recall_long",
    ]


@pytest.mark.parametrize(
    ("task", "model", "num_questions", "least"),
    [
        ("gsm_symbolic", "server:canary-mla", 1319, LEAST_OF_CANARY),
        ("gsm_symbolic", "server:/models/canary-moe", 512, LEAST_OF_CANARY),
        # It has learned the first 512 of them.
        ("gsm_symbolic", "server:canary-moe", 513, None),
        ("recall", "canary-dsa", 63, LEAST_OF_CANARY),
        ("recall", "canary-mla", 63, None),
        # It needs an indexer that selects 2,048 tokens; the canary's selects 512.
        ("recall_long", "canary-dsa", 24, None),
        ("gsm8k", "canary-mla", 10, None),
        ("gsm_symbolic", "server:deepseek-v3", 10, None),
    ],
)
def test_a_canary_has_a_least_accuracy_on_what_it_knows(
    task: str, model: str, num_questions: int, least: float | None
) -> None:
    assert least_of_canary(task, model, num_questions) == least


@pytest.mark.parametrize(("name", "number"), [("gsm_symbolic", 1319), ("aime_shaped", 30)])
def test_the_projects_tasks_grade_their_own_answers_as_right(
    tmp_path: Path, name: str, number: int
) -> None:
    task = load_task(name, tmp_path)
    assert len(task.questions) == len(set(task.questions)) == number
    for instance in task.instances[:40]:
        assert instance.args[0] == f"Question: {instance.doc['question']}\nAnswer:"
        grade = task.grade(instance, " " + instance.doc["answer"])
        assert grade.correct and not grade.unparsed


def test_an_answer_without_a_number_is_wrong_and_unparsed(sums: Task) -> None:
    grade = sums.grade(sums.instances[3], "I do not know")
    assert (grade.correct, grade.unparsed, grade.scores) == (False, True, {"strict-match": 0.0})


def test_a_wrong_number_is_wrong_but_parses(sums: Task) -> None:
    grade = sums.grade(sums.instances[3], " #### 7")
    assert (grade.correct, grade.unparsed) == (False, False)


def test_grading_leaves_the_task_as_it_was(sums: Task) -> None:
    sums.grade(sums.instances[0], "#### 0")
    assert sums.instances[0].resps == [] and sums.instances[0].filtered_resps == {}


def _gsm8k(directory: Path) -> Path:
    (directory / "gsm8k").mkdir(parents=True)
    rows = [
        {"question": f"How many are {i} and 1?", "answer": f"{i}+1.\n#### {i + 1}"}
        for i in range(20)
    ]
    for split in ("train", "test"):
        (directory / "gsm8k" / f"{split}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows)
        )
    return directory


def test_stock_gsm8k_runs_on_local_lines_with_its_own_prompt_and_both_filters(
    tmp_path: Path,
) -> None:
    task = load_task("gsm8k", tmp_path / "work", data_dir=_gsm8k(tmp_path / "data"), limit=4)
    assert len(task.questions) == 4 and task.filter == "strict-match"
    assert task.instances[0].args[0].count("Question:") == 6
    assert task.instances[0].args[1]["until"] == ["Question:", "</s>", "<|im_end|>"]
    flexible = task.grade(task.instances[0], "that makes 1")
    assert flexible.scores == {"strict-match": 0.0, "flexible-extract": 1.0} and flexible.unparsed


def test_another_filter_can_be_the_one_that_counts(tmp_path: Path, approved: Approved) -> None:
    data = _gsm8k(tmp_path / "data")
    task = load_task(
        "gsm8k", tmp_path / "work", data_dir=data, limit=2, filter_name="flexible-extract"
    )
    assert task.grade(task.instances[0], "that makes 1").correct
    with approved.raises(InputError):
        load_task("gsm8k", tmp_path / "work", data_dir=data, filter_name="x")


def test_few_shot_prompts_are_the_same_each_time_the_task_is_loaded(tmp_path: Path) -> None:
    data = _gsm8k(tmp_path / "data")
    first = load_task("gsm8k", tmp_path / "a", data_dir=data)
    again = load_task("gsm8k", tmp_path / "b", data_dir=data)
    assert [i.args[0] for i in first.instances] == [i.args[0] for i in again.instances]


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("aime25", {"problem": "1+69?", "answer": 70, "id": "0"}),
        ("aime24", {"Problem": "1+69?", "Answer": 70}),
    ],
)
def test_stock_aime_runs_on_local_lines_with_its_own_scoring(
    tmp_path: Path, name: str, row: dict[str, object]
) -> None:
    folder = tmp_path / "data" / name
    folder.mkdir(parents=True)
    (folder / f"{'train' if name == 'aime24' else 'test'}.jsonl").write_text(json.dumps(row) + "\n")
    task = load_task(name, tmp_path / "work", data_dir=tmp_path / "data")
    assert task.instances[0].args[0] == "Question: 1+69?\nAnswer:"
    assert task.grade(task.instances[0], r"so \boxed{70}").correct
    assert not task.grade(task.instances[0], "").correct


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gsm8kk", r"--task 'gsm8kk': unknown; did you mean 'gsm8k'\?"),
        ("gsm8k", r"--data-dir .*: task gsm8k needs .*train.jsonl, which is not there"),
    ],
)
def test_a_wrong_name_and_missing_data_are_input_errors(
    tmp_path: Path, name: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        load_task(name, tmp_path / "work", data_dir=tmp_path)


def test_lines_that_are_no_json_are_an_input_error(tmp_path: Path, approved: Approved) -> None:
    (tmp_path / "gsm_symbolic.jsonl").write_text('{"question": "one"}\nnot json\n')
    with approved.raises(InputError):
        load_task("gsm_symbolic", tmp_path / "work", data_dir=tmp_path)


def test_questions_without_the_fields_of_the_task_are_an_input_error(
    tmp_path: Path, approved: Approved
) -> None:
    (tmp_path / "gsm_symbolic.jsonl").write_text('{"wrong": "one"}\n')
    with approved.raises(InputError):
        load_task("gsm_symbolic", tmp_path / "work", data_dir=tmp_path)


def test_a_question_asked_twice_keeps_two_results() -> None:
    doc = {"question": "again?"}
    first, second, other = question_hashes([doc, doc, {"question": "else?"}])
    assert second == f"{first}-2" and other not in (first, second)


NO_NETWORK = """
import socket, sys
from pathlib import Path
def refuse(*args, **kwargs):
    raise AssertionError(f"network: {args}")
socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
from harness.accuracy.tasks import load_task
task = load_task("gsm_symbolic", Path(sys.argv[1]), limit=3)
import os
print(len(task.questions), "torch" in sys.modules, os.path.exists(os.path.expanduser("~/.cache")))
"""


def test_a_local_task_touches_no_network_no_home_and_no_torch(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")} | {
        "HOME": str(tmp_path / "home")
    }
    done = subprocess.run(
        [sys.executable, "-c", NO_NETWORK, str(tmp_path / "work")],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.stdout.split() == ["3", "False", "False"], done.stderr[-2000:]
    assert any((tmp_path / "work" / "datasets").iterdir())
