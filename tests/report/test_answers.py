"""What the page draws and tells of the answers of an accuracy run."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from harness.accuracy.acceptance import Drafts, keep_drafts
from harness.accuracy.answer_log import FILE_NAME
from harness.accuracy.cache_hits import Hits, keep_hits
from harness.report import answers as report_answers
from harness.report import page, plot
from harness.report.answers import (
    Parting,
    answers_of,
    questions_of,
    shares_by_length,
    shares_by_position,
)
from harness.report.run_view import RunView
from harness.store.run_folder import RunStore
from tests.report.answered_runs import HOSTILE, answered


def found_in(store: RunStore) -> report_answers.StoredAnswers:
    found = answers_of(store)
    assert found is not None
    return found


def test_equal_answers_stand_once_and_the_character_where_another_parts_is_named(
    tmp_path: Path,
) -> None:
    store = answered(tmp_path, [["yes", "yes"], ["yes", "yen"], ["yes", "yes"]])
    asked = questions_of(found_in(store))
    assert asked[1].answers == ("yes",)
    assert [row.answer for row in asked[1].epochs] == [0, 0, 0]
    assert asked[2].answers == ("yes", "yen")
    _, changed, same = asked[2].epochs
    assert (changed.answer, changed.parting) == (1, Parting(2))
    assert same.parting is None


def test_with_log_probabilities_the_first_token_that_differs_has_those_of_both_answers(
    tmp_path: Path,
) -> None:
    store = answered(
        tmp_path, [["it is so"], ["it was so"]], right="it is so", logprobs=[-0.1, -0.7, None]
    )
    first, second = questions_of(found_in(store))[1].epochs
    assert (first.least_logprob, first.mean_logprob) == (-0.7, -0.4)
    assert second.parting == Parting(3, 2, "is", "was", -0.7, -0.7)


def test_a_change_behind_what_is_kept_is_said_to_have_no_place(tmp_path: Path) -> None:
    store = answered(tmp_path, [["yes"], ["yes"]])
    log = store.path / FILE_NAME
    lines = log.read_text().splitlines()
    lines[2] = lines[2].replace(hashlib.sha256(b"yes").hexdigest()[:12], "another")
    log.write_text("\n".join(lines) + "\n")
    (_, second) = questions_of(found_in(store))[1].epochs
    assert second.parting == Parting(None)


def test_a_page_that_would_be_too_large_keeps_the_questions_that_flipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_answers, "MOST_BYTES", 900)
    store = answered(tmp_path, [["yes"] * 9, ["yes"] * 8 + ["no"]])
    asked = questions_of(found_in(store))
    assert 9 in asked and 9 - len(asked) > 0


def test_a_run_without_answers_of_its_own_has_none_to_show(tmp_path: Path) -> None:
    store = answered(tmp_path, [["yes"]])
    (store.path / FILE_NAME).unlink()
    assert answers_of(store) is None


def test_answers_that_fall_late_in_an_epoch_show_by_place(tmp_path: Path) -> None:
    # The order of the task is the reverse of the order in which the questions were asked.
    order = list(reversed(range(80)))
    store = answered(tmp_path, [["no"] * 20 + ["yes"] * 60], order=order)
    shares = [share for _, share, _ in shares_by_position(found_in(store))]
    assert shares == [1.0] * 6 + [0.0] * 2


def test_answers_of_one_length_stay_together(tmp_path: Path) -> None:
    texts = ["yes"] * 30 + ["no no no"] * 30
    shares = shares_by_length(found_in(answered(tmp_path, [texts])))
    assert [(label, share) for label, share, _ in shares] == [("1", 1.0), ("3", 0.0)]


def test_too_few_answers_are_in_no_part(tmp_path: Path) -> None:
    found = found_in(answered(tmp_path, [["yes"] * 6]))
    assert not shares_by_position(found) and not shares_by_length(found)


def test_the_page_draws_the_curve_with_the_least_accuracy_and_the_drop(tmp_path: Path) -> None:
    store = answered(tmp_path, [["yes"] * 40, ["yes"] * 20 + ["no"] * 20], least=0.75)
    keep_drafts(store.path, 1, Drafts(100, 90))
    keep_drafts(store.path, 2, Drafts(100, 40))
    keep_hits(store.path, 1, Hits(100, 70))
    text = page.render(RunView(store))
    assert "70 of 100 prompt tokens were in the prefix cache" in text
    assert 'class="dot marked"' in text and 'class="least"' in text
    assert "epoch 2: 0.5000" in text
    assert "40 of 100 drafted tokens accepted" in text
    assert 'href="accuracy.jsonl"' in text
    assert HOSTILE not in text


def test_a_grid_has_a_cell_for_each_answer_that_is_not_right_and_breaks_into_bands() -> None:
    wide = "1" * plot.GRID_COLUMNS + "0"
    drawn = str(plot.grid([wide, "1" * len(wide)], {"0": "wrong"}, "cells"))
    assert drawn.count('class="cells"') == 2
    band = 2 * plot.CELL + plot.BAND_GAP
    assert f'd="M0 {band}h' in drawn and drawn.count("z") == 1


@pytest.mark.parametrize(("lowest", "start"), [(0.97, 0.96), (0.91, 0.9), (0.3, 0.0)])
def test_the_axis_starts_below_the_lowest_value(lowest: float, start: float) -> None:
    ticks = plot.axis_of(lowest)
    assert ticks[0] == start and ticks[-1] == pytest.approx(1.0)


def test_what_a_drawing_says_is_escaped() -> None:
    point: Any = plot.Point(1.0, HOSTILE, 0.5, 0.4, 0.6, says=HOSTILE)
    assert HOSTILE not in str(plot.curve([point], [plot.Level(HOSTILE, 0.5, "least")], HOSTILE))
