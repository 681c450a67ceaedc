from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lm_eval
import pytest

from harness.accuracy.answer_log import read_log
from harness.accuracy.backends import Answer
from harness.accuracy.epochs import Progress, epoch_order, run_epochs
from harness.accuracy.lm import BackendLM
from harness.accuracy.tasks import Task, load_task
from harness.core.errors import HarnessError, InputError
from tests.conftest import StartProcess
from tests.transcripts import Approved
from tests.waiting import wait_until


def test_each_epoch_asks_every_question_once_in_an_order_of_its_own(
    tmp_path: Path, sums: Task, perfect: Any
) -> None:
    run = run_epochs(perfect, sums, tmp_path, num_epochs=3, seed=4)
    assert [len(run.epoch(n)) for n in (1, 2, 3)] == [12, 12, 12]
    assert len({tuple(call) for call in perfect.calls}) == 3
    assert len({frozenset(call) for call in perfect.calls}) == 1
    prompts = [instance.args[0] for instance in sums.instances]
    assert perfect.calls[1] == [prompts[i] for i in epoch_order(12, 4, 2)]
    assert all(result.correct for result in run.results.values())


def test_the_order_is_decided_by_seed_and_epoch_alone() -> None:
    assert epoch_order(50, 1, 2) == epoch_order(50, 1, 2)
    assert epoch_order(50, 1, 2) != epoch_order(50, 1, 3) != epoch_order(50, 2, 3)
    assert sorted(epoch_order(50, 1, 2)) == list(range(50))


def test_a_stored_position_is_the_place_in_which_the_question_was_asked(
    tmp_path: Path, sums: Task, perfect: Any
) -> None:
    run = run_epochs(perfect, sums, tmp_path, num_epochs=1)
    prompt = {
        name: instance.args[0]
        for name, instance in zip(sums.questions, sums.instances, strict=True)
    }
    asked = sorted(run.epoch(1), key=lambda result: result.position)
    assert [prompt[result.question] for result in asked] == perfect.calls[0]


def test_an_answer_that_utf_8_cannot_carry_is_stored_and_read(
    tmp_path: Path, sums: Task, scripted: Any
) -> None:
    run_epochs(scripted(lambda call, prompt: Answer("\ud800")), sums, tmp_path, num_epochs=1)
    _, results = read_log(tmp_path / "accuracy.jsonl")
    assert {result.answer for result in results.values()} == {"\ud800"}


def test_stored_grades_are_those_of_lm_evals_own_run(
    tmp_path: Path, sums: Task, scripted: Any, right_answer: Callable[[str], str]
) -> None:
    def reply(call: int, prompt: str) -> Answer:
        return Answer(
            "no idea" if "7" in prompt else "#### 3" if "4" in prompt else right_answer(prompt)
        )

    run = run_epochs(scripted(reply), sums, tmp_path, num_epochs=1)
    fresh = load_task("gsm_symbolic", tmp_path / "fresh", data_dir=tmp_path / "data")
    own = lm_eval.evaluate(
        BackendLM(scripted(reply)),
        {"tasks": {"gsm_symbolic": fresh.lm_eval_task}},
        bootstrap_iters=0,
    )
    mean = own["results"]["gsm_symbolic"]["exact_match,strict-match"]
    assert sum(result.correct for result in run.epoch(1)) / 12 == mean < 1.0


def test_every_way_of_not_answering_is_told_apart_and_counted_as_wrong(
    tmp_path: Path, sums: Task, scripted: Any, right_answer: Callable[[str], str]
) -> None:
    def reply(call: int, prompt: str) -> Answer:
        special = {
            "is 1 +": Answer("", "error", unanswered="HTTP 500 (5 attempts)", num_attempts=5),
            "is 2 +": Answer("  "),
            "is 3 +": Answer("no number here"),
            "is 4 +": Answer(right_answer(prompt), had_invalid_tokens=True),
        }
        return next(
            (answer for key, answer in special.items() if key in prompt),
            Answer(right_answer(prompt)),
        )

    run = run_epochs(scripted(reply), sums, tmp_path, num_epochs=1)
    first = run.epoch(1)
    assert [r.unanswered for r in first[:3]] == [None, "HTTP 500 (5 attempts)", None]
    assert [r.empty for r in first[:5]] == [False, False, True, False, False]
    assert [r.unparsed for r in first[:5]] == [False, False, False, True, False]
    assert [r.invalid_tokens for r in first[:5]] == [False, False, False, False, True]
    assert [r.correct for r in first[:6]] == [True, False, False, False, True, True]


def test_the_task_settings_reach_the_backend(tmp_path: Path, sums: Task, perfect: Any) -> None:
    run_epochs(perfect, sums, tmp_path, num_epochs=1, max_tokens=64)
    assert perfect.limits == [(64, ("Question:",))]


def test_progress_is_told_after_each_answer(tmp_path: Path, sums: Task, perfect: Any) -> None:
    seen: list[Progress] = []
    run_epochs(perfect, sums, tmp_path, num_epochs=2, on_progress=seen.append)
    assert len(seen) == 24
    last = seen[-1]
    assert (last.epoch, last.answered, last.num_questions, last.num_correct, last.unanswered) == (
        2,
        12,
        12,
        12,
        0,
    )
    assert last.num_tokens > 0 and last.milliseconds >= 0


def test_ctrl_c_in_an_epoch_keeps_what_was_answered_and_resume_asks_the_rest(
    tmp_path: Path, sums: Task, perfect: Any, scripted: Any, right_answer: Callable[[str], str]
) -> None:
    def interrupted(call: int, prompt: str) -> Answer:
        if call == 2 and len(backend.calls[1]) == 6:
            raise KeyboardInterrupt
        return Answer(right_answer(prompt), num_tokens=5)

    backend = scripted(interrupted, True)
    with pytest.raises(KeyboardInterrupt):
        run_epochs(backend, sums, tmp_path, num_epochs=3)
    _, kept = read_log(tmp_path / "accuracy.jsonl")
    assert len(kept) == 12 + 5
    run = run_epochs(perfect, sums, tmp_path, num_epochs=3, resume=True)
    assert [len(call) for call in perfect.calls] == [7, 12]
    assert backend.calls[1][:5] + perfect.calls[0] == [
        sums.instances[i].args[0] for i in epoch_order(12, 0, 2)
    ]
    assert len(run.results) == 36


def test_resuming_a_finished_run_asks_nothing(tmp_path: Path, sums: Task, perfect: Any) -> None:
    run_epochs(perfect, sums, tmp_path, num_epochs=2)
    before = (tmp_path / "accuracy.jsonl").read_bytes()
    run = run_epochs(perfect, sums, tmp_path, num_epochs=2, resume=True)
    assert len(perfect.calls) == 2 and len(run.results) == 24
    assert (tmp_path / "accuracy.jsonl").read_bytes() == before


def test_a_second_run_does_not_silently_join_the_first(
    tmp_path: Path, sums: Task, perfect: Any, approved: Approved
) -> None:
    run_epochs(perfect, sums, tmp_path, num_epochs=1)
    with approved.raises(InputError):
        run_epochs(perfect, sums, tmp_path, num_epochs=1)
    with approved.raises(InputError):
        run_epochs(perfect, sums, tmp_path, num_epochs=1, seed=1, resume=True)


def test_a_grade_that_lm_eval_does_not_share_is_the_harness_own_error(
    tmp_path: Path, sums: Task, perfect: Any, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    from harness.accuracy.tasks import Grade

    monkeypatch.setattr(
        sums, "grade", lambda instance, text: Grade(False, {"strict-match": 0.0}, False)
    )
    with approved.raises(HarnessError):
        run_epochs(perfect, sums, tmp_path, num_epochs=1)


SLOW_RUN = """
import sys, time
from pathlib import Path
from harness.accuracy.backends import Answer, Identity
from harness.accuracy.epochs import run_epochs
from harness.accuracy.tasks import load_task

class Slow:
    identity = Identity("slow", "none", "float32", "sha256:00", True)
    num_answered = 0
    def generate(self, prompts, *, max_tokens, stop, on_answer=None):
        answers = []
        for position, prompt in enumerate(prompts):
            # Seventeen answers are one epoch of twelve questions, and five of the next.
            while self.num_answered == 17 and "--resume" not in sys.argv:
                time.sleep(0.02)
            self.num_answered += 1
            number = int(prompt.split("What is ")[1].split(" ")[0])
            answers.append(Answer(f"#### {2 * number}", num_tokens=1))
            on_answer(position, answers[-1])
        return answers
    def close(self):
        pass

folder = Path(sys.argv[1])
task = load_task("gsm_symbolic", folder / "work", data_dir=folder / "data")
run_epochs(Slow(), task, folder, num_epochs=4, resume="--resume" in sys.argv)
"""


@pytest.mark.nightly
def test_a_run_killed_in_the_middle_of_an_epoch_resumes_and_counts_no_question_twice(
    start_process: StartProcess, tmp_path: Path, sums: Task
) -> None:
    log = tmp_path / "accuracy.jsonl"
    command = [sys.executable, "-c", SLOW_RUN, str(tmp_path)]
    process = start_process(command)
    # The header, the first epoch and five questions of the second.
    wait_until(
        lambda: log.exists() and log.read_bytes().count(b"\n") >= 1 + 12 + 5,
        "17 were answered",
        process,
    )
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    killed = log.read_bytes()
    _, kept = read_log(log)
    assert len(kept) == 17
    # What a kill in the middle of a write leaves behind.
    log.write_bytes(killed + b'{"epoch": 2, "question": "half a li')
    subprocess.run([*command, "--resume"], check=True)
    lines = log.read_text().splitlines()
    rows = [json.loads(line) for line in lines[1:] if not line.endswith("half a li")]
    keys = [(row["epoch"], row["question"]) for row in rows]
    assert len(keys) == len(set(keys)) == 4 * 12
    assert log.read_bytes().startswith(killed)
    assert keys[: len(kept)] == list(kept)
