from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.accuracy.answer_log import AccuracyRun
from harness.accuracy.backends import CANARY_NOTE
from harness.accuracy.baselines import Baseline
from harness.accuracy.judge import judge
from harness.core.cause_codes import Code
from harness.core.errors import InputError
from harness.core.records import AccuracyLimits, AccuracyRecord, Verdict
from tests.accuracy.conftest import MEASURED
from tests.transcripts import Approved

MakeRun = Callable[..., AccuracyRun]


def baseline(outcomes: str, **fields: object) -> Baseline:
    names = [f"q{i:04}" for i in range(len(outcomes))]
    settings: dict[str, object] = {
        "name": "stored",
        "accuracy": outcomes.count("1") / len(outcomes),
        "num_questions": len(outcomes),
        "right": [name for name, mark in zip(names, outcomes, strict=True) if mark == "1"],
        "wrong": [name for name, mark in zip(names, outcomes, strict=True) if mark == "0"],
    }
    return Baseline.model_validate(MEASURED | settings | fields)


def test_flat_epochs_of_a_deterministic_engine_pass_and_say_that_nothing_flipped(
    stored_run: MakeRun,
    approved: Approved,
) -> None:
    record = judge(stored_run("1" * 63 + "0", "1" * 63 + "0", "1" * 63 + "0", deterministic=True))
    assert record.verdict is Verdict.PASS
    assert record.judgement.num_flips == 0 and record.judgement.p_value == 1.0
    approved(record.judgement.statement)


def test_a_pass_of_few_questions_says_that_they_are_too_few(stored_run: MakeRun) -> None:
    record = judge(stored_run("1" * 16, "1" * 16), baseline=baseline("1" * 16))
    assert record.verdict is Verdict.PASS
    said = "too few questions: only a drop of 56% or more would have been seen"
    assert record.judgement.statement.endswith(said)


ALL = "nothing short of the loss of all {} right answers would have been seen"
NONE = "even the loss of all {} right answers would not have been significant"


@pytest.mark.parametrize(
    ("rows", "stored", "how", "why"),
    [
        pytest.param(
            ("0000", "0000", "0000"), "", {}, "no answer of epoch 1 is right", id="never right"
        ),
        pytest.param(
            ("0000", "0000"),
            "",
            {"deterministic": True},
            "no answer of epoch 1 is right",
            id="nor by flips",
        ),
        pytest.param(
            ("0000", "0000"),
            "0000",
            {},
            "no answer of the baseline is right",
            id="nor in the baseline",
        ),
        pytest.param(("1111",), "", {}, "one epoch and no baseline", id="nothing to compare with"),
        pytest.param(("1111", "1111"), "", {}, NONE.format(4), id="four questions"),
        pytest.param(("1" * 7, "1" * 7), "", {}, ALL.format(7), id="seven questions"),
        pytest.param(
            ("1" * 8, "1" * 8),
            "1" * 8,
            {"deterministic": True},
            ALL.format(8),
            id="wrong in each epoch",
        ),
        pytest.param(("1100000000", "1100000000"), "", {}, NONE.format(2), id="few are right"),
    ],
)
def test_a_run_that_could_have_shown_nothing_is_no_pass(
    stored_run: MakeRun,
    rows: tuple[str, ...],
    stored: str,
    how: dict[str, Any],
    why: str,
    approved: Approved,
) -> None:
    record = judge(stored_run(*rows, **how), baseline=baseline(stored) if stored else None)
    assert record.verdict is Verdict.SKIP and record.judgement.verdict is Verdict.SKIP
    said = record.judgement.statement
    assert why in said
    approved(said)
    assert "seen (" not in said and "no significant drop" not in said


def test_what_was_asked_for_by_number_is_shown_whatever_the_tests_can_see(
    stored_run: MakeRun,
    approved: Approved,
) -> None:
    record = judge(stored_run("1111", "1111"), limits=AccuracyLimits(accuracy=0.9))
    assert record.verdict is Verdict.PASS
    approved(record.judgement.statement)
    alone = judge(stored_run("1111"), limits=AccuracyLimits(accuracy=0.9))
    assert alone.verdict is Verdict.PASS and "None" not in alone.judgement.statement
    assert (
        judge(stored_run("0000", "0000"), limits=AccuracyLimits(accuracy=0.0)).verdict
        is Verdict.SKIP
    )
    flips = judge(stored_run("1111", "1111", deterministic=True))
    assert flips.verdict is Verdict.PASS and flips.judgement.smallest_drop == 0.25


@pytest.mark.nightly
def test_an_epoch_that_loses_answers_is_seen_by_the_run_that_says_so(stored_run: MakeRun) -> None:
    """The smallest drop that a passing run names makes the run fail, if it happens in the last
    epoch.
    """
    for right, deterministic in ((64, False), (64, True), (12, True), (9, False)):
        rows = ["1" * right] * 3
        record = judge(stored_run(*rows, deterministic=deterministic))
        lost = round((record.judgement.smallest_drop or 0) * right)
        assert record.verdict is Verdict.PASS and 0 < lost < right
        rows[2] = "0" * lost + "1" * (right - lost)
        assert judge(stored_run(*rows, deterministic=deterministic)).verdict is Verdict.FAIL


def test_the_collapse_of_recycled_pages_fails_by_each_epoch_and_by_the_trend(
    stored_run: MakeRun,
) -> None:
    record = judge(stored_run("1" * 58 + "0" * 6, "1" * 45 + "0" * 19, "1" + "0" * 63))
    assert record.verdict is Verdict.FAIL
    assert [(one.cause, one.epoch) for one in record.judgement.kinds] == [
        (Code.DROP, 2),
        (Code.DROP, 3),
        (Code.TREND, 0),
    ]
    assert [reason[8:15] for reason in record.judgement.reasons[:2]] == ["lost 13", "lost 57"]
    assert record.judgement.num_tests == 3
    assert record.judgement.p_value is not None and record.judgement.p_value < 1e-9
    assert [round(epoch.accuracy, 4) for epoch in record.epochs] == [0.9062, 0.7031, 0.0156]
    assert record.ci == tuple(epoch.interval for epoch in record.epochs)


def test_epochs_that_are_flat_but_far_below_the_baseline_fail(
    stored_run: MakeRun, approved: Approved
) -> None:
    record = judge(
        stored_run("1" * 16 + "0" * 48, "1" * 16 + "0" * 48), baseline=baseline("1" * 64)
    )
    assert record.verdict is Verdict.FAIL
    assert record.baseline is not None and record.baseline.accuracy == 1.0
    approved(record.judgement.reasons[0])
    assert "(baseline 1.0000)" in record.judgement.statement


def test_a_significant_rise_is_no_failure(stored_run: MakeRun) -> None:
    record = judge(stored_run("0" * 30 + "1" * 30, "1" * 60))
    assert record.verdict is Verdict.PASS and record.epochs[1].flips is not None
    assert record.epochs[1].flips.gained == 30 and record.epochs[1].flips.p_value < 1e-6


def test_a_few_flips_are_chance_for_a_server_and_a_finding_for_a_deterministic_engine(
    stored_run: MakeRun,
) -> None:
    rows = ("1" * 60, "1" * 58 + "00")
    loose = judge(stored_run(*rows))
    assert loose.verdict is Verdict.PASS and "2 flips" in loose.judgement.statement
    strict = judge(stored_run(*rows, deterministic=True))
    assert strict.verdict is Verdict.FAIL
    assert [one.cause for one in strict.judgement.kinds] == [Code.FLIPS]


def test_an_unfinished_run_is_an_error_that_says_how_to_go_on(stored_run: MakeRun) -> None:
    record = judge(stored_run("1111", "11.."))
    assert record.verdict is Verdict.ERROR
    assert [(one.cause, one.epoch) for one in record.judgement.kinds] == [(Code.INCOMPLETE, 2)]
    assert "--resume" in record.judgement.statement


@pytest.mark.parametrize(
    ("mark", "field", "words"),
    [
        ("u", "unanswered", "were not answered"),
        ("e", "empty", "are empty"),
        ("p", "unparsed", "do not parse"),
        ("i", "invalid_tokens", "hold invalid tokens"),
    ],
)
def test_each_kind_of_broken_answer_can_fail_a_run_by_itself(
    stored_run: MakeRun, mark: str, field: str, words: str, approved: Approved
) -> None:
    run = stored_run("1" * 60 + mark * 4, "1" * 60 + mark * 4)
    strict = judge(run, limits=AccuracyLimits.model_validate({field: 0.05}))
    assert strict.verdict is Verdict.FAIL
    approved(strict.judgement.reasons[0])
    assert all(getattr(epoch, field) == 4 for epoch in strict.epochs)
    allowed = judge(
        run, limits=AccuracyLimits(unanswered=None, empty=None, unparsed=None, invalid_tokens=None)
    )
    assert allowed.verdict is Verdict.PASS


def test_a_single_invalid_token_fails_a_run_by_default(stored_run: MakeRun) -> None:
    record = judge(stored_run("1" * 999 + "i", "1" * 999 + "i"))
    assert record.verdict is Verdict.FAIL


def test_an_unanswered_question_lowers_the_accuracy_but_is_no_flip(stored_run: MakeRun) -> None:
    record = judge(
        stored_run("1" * 20, "1" * 10 + "u" * 10), limits=AccuracyLimits(unanswered=None)
    )
    assert record.epochs[1].accuracy == 0.5 and record.epochs[1].num_questions == 20
    assert record.epochs[1].flips is not None
    assert (record.epochs[1].flips.lost, record.epochs[1].flips.num_shared) == (0, 10)
    assert record.epochs[1].unanswered_reasons == {"HTTP 500 (5 attempts)": 10}


def test_an_accuracy_below_the_asked_minimum_fails(stored_run: MakeRun, approved: Approved) -> None:
    record = judge(stored_run("1100", "1100"), limits=AccuracyLimits(accuracy=0.9))
    approved(record.judgement.reasons[0])


def test_a_limited_run_is_compared_to_the_same_few_questions(stored_run: MakeRun) -> None:
    record = judge(stored_run("1" * 20), baseline=baseline("1" * 19 + "0" + "0" * 60))
    assert record.baseline is not None
    assert (record.baseline.num_shared, record.baseline.accuracy) == (20, 0.95)
    assert record.verdict is Verdict.PASS


def test_a_baseline_of_another_task_or_other_questions_is_an_input_error(
    stored_run: MakeRun,
    approved: Approved,
) -> None:
    with approved.raises(InputError):
        judge(stored_run("11"), baseline=baseline("11", task="aime_shaped"))
    with approved.raises(InputError):
        judge(stored_run("11"), baseline=baseline("11", right=["a", "b"]))


def test_a_canary_on_a_real_task_explains_its_own_zero(
    stored_run: MakeRun, approved: Approved
) -> None:
    record = judge(stored_run("0000", "0000", task="gsm8k", note=CANARY_NOTE))
    approved(record.judgement.statement)
    assert record.note == CANARY_NOTE and record.judgement.smallest_drop is None


def test_the_grid_holds_every_outcome_and_the_record_survives_json(stored_run: MakeRun) -> None:
    record = judge(
        stored_run("10uepi", "101111"),
        baseline=baseline("11"),
        scenario="kv-cache-full",
        case="a[b=c]",
    )
    assert record.grid.rows == ("10uepi", "101111") and record.grid.baseline == "11...."
    assert AccuracyRecord.model_validate_json(record.model_dump_json()) == record
