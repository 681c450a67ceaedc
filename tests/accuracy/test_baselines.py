from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.accuracy.answer_log import AccuracyRun
from harness.accuracy.baselines import (
    BASELINES,
    baseline_of,
    plan_update,
    read_baseline,
    read_baselines,
    write_baseline,
)
from harness.core.errors import InputError
from tests.transcripts import Approved

MakeRun = Callable[..., AccuracyRun]


def test_a_written_baseline_reads_back_and_is_found_by_what_it_is_of(
    stored_run: MakeRun, tmp_path: Path, approved: Approved
) -> None:
    change = plan_update(stored_run("1" * 30 + "0", "0" * 31), tmp_path)
    approved(change.lines())
    path = write_baseline(change)
    stored = read_baseline(path)
    assert stored.outcomes == change.new.outcomes and len(stored.outcomes) == 31
    assert baseline_of(stored_run("1"), tmp_path) == stored
    assert baseline_of(stored_run("1", model_hash="sha256:01"), tmp_path) is None


def test_an_update_shows_the_difference_before_anything_is_written(
    stored_run: MakeRun, tmp_path: Path, approved: Approved
) -> None:
    path = write_baseline(plan_update(stored_run("1100"), tmp_path))
    before = path.read_text()
    change = plan_update(stored_run("1011", model_hash="sha256:01"), tmp_path)
    approved(change.lines())
    assert path.read_text() == before
    assert write_baseline(change) == path and read_baseline(path).accuracy == 0.75


@pytest.mark.parametrize(
    ("row", "objection"),
    [
        ("1000", "accuracy falls from 0.5000 to 0.2500"),
        ("11", "2 of its questions were not asked"),
        ("11u0", "1 questions were not answered"),
    ],
)
def test_a_baseline_is_not_lowered_unless_that_is_allowed(
    stored_run: MakeRun, tmp_path: Path, row: str, objection: str
) -> None:
    path = write_baseline(plan_update(stored_run("1100"), tmp_path))
    before = path.read_text()
    change = plan_update(stored_run(row), tmp_path)
    with pytest.raises(InputError, match=f"not written: {objection}.*add --allow-regression"):
        write_baseline(change)
    assert path.read_text() == before
    write_baseline(change, allow_regression=True)
    assert read_baseline(path).outcomes == change.new.outcomes


def test_an_unfinished_first_epoch_makes_no_baseline(
    stored_run: MakeRun, tmp_path: Path, approved: Approved
) -> None:
    with approved.raises(InputError):
        plan_update(stored_run("11.."), tmp_path)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda text: text.replace("num_questions: 4", "num_questions: 5"),
            "4 outcomes for 5 questions",
        ),
        (
            lambda text: text.replace("accuracy: 0.5", "accuracy: 0.9"),
            "accuracy 0.9 is not 2 right answers",
        ),
        (lambda text: text.replace("task:", "tusk:"), "no baseline: task: Field required"),
        (lambda text: "[", "cannot be read"),
    ],
)
def test_a_file_edited_by_hand_is_caught(
    stored_run: MakeRun, tmp_path: Path, edit: Callable[[str], str], message: str
) -> None:
    path = write_baseline(plan_update(stored_run("1100"), tmp_path))
    path.write_text(edit(path.read_text()))
    with pytest.raises(InputError, match=message):
        read_baseline(path)


def test_a_baseline_of_gsm8ks_size_stays_compact(stored_run: MakeRun, tmp_path: Path) -> None:
    path = write_baseline(plan_update(stored_run("1" * 1319), tmp_path))
    assert len(path.read_text().splitlines()) < 200


def test_the_projects_own_baselines_are_sound() -> None:
    for baseline in read_baselines(BASELINES):
        assert baseline.num_questions in (30, 1319) and baseline.accuracy > 0.9


def test_the_engine_on_a_gpu_is_held_to_what_it_answers_on_a_cpu(
    stored_run: MakeRun, tmp_path: Path
) -> None:
    run = stored_run("110")
    write_baseline(plan_update(run, tmp_path))
    there = replace(
        run, header=run.header.model_copy(update={"engine": f"{run.header.engine} on cuda"})
    )
    found = baseline_of(there, tmp_path)
    assert found is not None and found.engine == run.header.engine
    elsewhere = replace(run, header=run.header.model_copy(update={"engine": "another"}))
    assert baseline_of(elsewhere, tmp_path) is None
