"""Oracle `accuracy`: silent on a flat curve, loud on a fallen one, and no judge without a
baseline.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.accuracy.answer_log import AccuracyRun
from harness.accuracy.baselines import Baseline
from harness.core.cases import Case
from harness.core.cause_codes import Code
from harness.core.errors import InputError
from harness.core.records import Verdict
from harness.evidence.answers import Answered, answers
from harness.evidence.answers import accuracy as judge
from harness.evidence.records import Evidence, Run
from tests.transcripts import Approved

MakeRun = Callable[..., AccuracyRun]
CASE = Case(
    id="kv-cache-full[accuracy=gsm_symbolic]",
    scenario="kv-cache-full",
    system="accuracy",
    params={"task": "gsm_symbolic"},
)


def all_right(number: int) -> Baseline:
    return Baseline(
        name="stored",
        task="gsm_symbolic",
        filter="strict-match",
        model="toy",
        model_hash="sha256:00",
        engine="engine",
        dtype="float32",
        accuracy=1.0,
        num_questions=number,
        right=tuple(f"q{i:04}" for i in range(number)),
        wrong=(),
    )


def evidence(run: AccuracyRun | None) -> Evidence:
    return Evidence(CASE, [Run("natural", [] if run is None else [Answered(run)])])


def test_a_flat_curve_at_the_baseline_is_clean_and_every_answer_was_looked_at(
    stored_run: MakeRun,
) -> None:
    judgement = judge(
        evidence(stored_run("1" * 16, "1" * 16, "1" * 16, deterministic=True)), all_right(16)
    )
    assert judgement.findings == [] and judgement.looked_at == 48
    assert judgement.accuracy is not None and judgement.accuracy.verdict is Verdict.PASS
    assert (judgement.accuracy.scenario, judgement.accuracy.case) == ("kv-cache-full", CASE.id)


def test_a_curve_that_falls_names_the_epochs_with_p_value_curve_baseline_and_power(
    stored_run: MakeRun,
    approved: Approved,
) -> None:
    run = stored_run("1" * 16, "1" * 9 + "0" * 7, "1" * 3 + "0" * 13)
    judgement = judge(evidence(run), all_right(16))
    (third, *_) = [finding for finding in judgement.findings if finding.where == "epoch 3"]
    assert third.oracle == "accuracy" and third.tensor == "gsm_symbolic"
    assert third.cause == Code.DROP
    approved(third.message)
    # Seven of sixteen lost are too few to be sure of, after adjusting for four tests; the trend is
    # not.
    assert [finding.where for finding in judgement.findings] == ["epoch 3", "all epochs"]


def test_a_curve_that_is_flat_at_nothing_is_seen_by_its_baseline(stored_run: MakeRun) -> None:
    judgement = judge(evidence(stored_run("0" * 12, "0" * 12)), all_right(12))
    assert {finding.where for finding in judgement.findings} == {"epoch 1", "epoch 2"}


def test_without_a_baseline_nothing_is_judged_and_the_error_says_how_to_make_one(
    stored_run: MakeRun,
    approved: Approved,
) -> None:
    with approved.raises(InputError):
        judge(evidence(stored_run("0" * 12, "0" * 12)))


def test_a_run_without_answers_was_not_looked_at() -> None:
    judgement = judge(evidence(None))
    assert (judgement.findings, judgement.looked_at, judgement.accuracy) == ([], 0, None)


def test_answers_are_judged_by_the_least_accuracy_of_the_case_and_a_missing_one_is_an_error(
    stored_run: MakeRun,
    approved: Approved,
) -> None:
    found = evidence(stored_run("1" * 8 + "0" * 8))
    with approved.raises(ValueError):
        answers(found)
    (answered,) = found.runs[0].all(Answered)
    answered.least_accuracy = 0.97
    (finding,) = answers(found).findings
    assert (finding.oracle, finding.cause, finding.where) == ("answers", "limit", "epoch 1")
    answered.least_accuracy = 0.5
    assert answers(found).findings == []
