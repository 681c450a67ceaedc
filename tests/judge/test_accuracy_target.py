"""A canary asked inside a case: executed by the worker's own function, with and without a fault,
and resumed.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from harness.accuracy.answer_log import FILE_NAME, read_run
from harness.core.cases import Case, Job
from harness.core.cause_codes import Code
from harness.core.records import CaseResult, Verdict
from harness.judge.run_case import run_case, why_not
from harness.scenario.expand import expand, fault_cases
from harness.scenario.load import load_scenarios, shipped_directory

SCENARIOS = {scenario.name: scenario for scenario in load_scenarios(shipped_directory())}


def small(scenario: str, task: str, **params: object) -> Case:
    """A shipped measurement with fewer questions."""
    case = next(
        case for case in expand(SCENARIOS[scenario]) if case.id == f"{scenario}[accuracy={task}]"
    )
    return case.model_copy(update={"params": case.params.model_copy(update=params)})


def run(case: Case, fault: str | None = None, directory: Path | None = None) -> CaseResult:
    return run_case(
        Job(key=case.id, case=case, fault=fault, directory=str(directory) if directory else None)
    )


@pytest.mark.nightly
def test_a_clean_canary_is_flat_and_its_record_is_in_the_result() -> None:
    result = run(small("mrv2-capture", "aime_shaped", limit=9, epochs=2))
    assert result.verdict is Verdict.PASS, result.reason
    assert result.looked_at["accuracy"] == 18
    record = result.accuracy
    assert record is not None and record.fault is None and record.judgement.num_flips == 0
    assert [epoch.accuracy for epoch in record.epochs] == [1.0, 1.0]
    assert CaseResult.model_validate_json(result.model_dump_json()) == result


def test_a_plan_that_no_replay_renews_answers_nothing_from_the_first_epoch_on() -> None:
    case = small("mrv2-capture", "aime_shaped", limit=8, epochs=1, max_tokens=64)
    result = run(case, "graph.plan-in-warmup-only")
    assert result.verdict is Verdict.FAIL
    assert result.findings[0].oracle == "accuracy" and result.findings[0].where == "epoch 1"
    assert result.accuracy is not None and result.accuracy.epochs[0].accuracy == 0.0
    assert result.accuracy.fault == "graph.plan-in-warmup-only"


def test_pages_that_are_not_zeroed_spoil_the_second_epoch_and_not_the_first() -> None:
    case = small("kv-cache-full", "gsm_symbolic", limit=8, epochs=3, num_blocks=30)
    result = run(case, "kv.skip-zero-new-blocks")
    assert result.accuracy is not None
    first, *later = [epoch.accuracy for epoch in result.accuracy.epochs]
    assert first >= 0.85 and later[-1] <= 0.5
    assert result.verdict is Verdict.FAIL


def small_case(name: str) -> Case:
    return next(case for case in expand(SCENARIOS[name]) if case.system == "accuracy")


@pytest.mark.nightly
def test_an_epoch_cut_short_is_continued_and_no_question_is_asked_twice(tmp_path: Path) -> None:
    case = small("mrv2-capture", "aime_shaped", limit=4, epochs=2)
    whole = run(case, directory=tmp_path / "whole")
    lines = (tmp_path / "whole" / FILE_NAME).read_text().splitlines(keepends=True)
    cut = tmp_path / "cut"
    cut.mkdir()
    # The header, the first epoch, one answer of the second, and half of the next line: what a
    # SIGKILL leaves.
    (cut / FILE_NAME).write_text("".join(lines[:6]) + lines[6][:40])
    resumed = run(case, directory=cut)
    assert resumed.verdict is Verdict.SKIP and resumed.cause == Code.POWERLESS, (
        "four questions can show nothing"
    )
    stored = read_run(cut)
    assert len(stored.results) == 8
    after = (cut / FILE_NAME).read_text().splitlines(keepends=True)
    assert after[:6] == lines[:6] and len(after) == len(lines)
    assert resumed.accuracy is not None and whole.accuracy is not None
    assert resumed.accuracy.grid == whole.accuracy.grid


def test_without_lm_eval_the_case_is_skipped_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find = importlib.util.find_spec

    def without_lm_eval(name: str, *rest: str) -> object:
        return None if name == "lm_eval" else find(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", without_lm_eval)
    reason = why_not(small_case("kv-cache-full"), "cpu")
    assert reason.cause == Code.NOT_INSTALLED and "lm-eval" in reason.sentence


@pytest.mark.parametrize("name", ["kv-cache-full", "fp8-decode-graphs", "mrv2-capture"])
def test_each_scenario_tries_its_fault_on_its_accuracy_too(name: str) -> None:
    tried = [use for use, case in fault_cases(SCENARIOS[name]) if case.system == "accuracy"]
    assert tried and all(use.caught_by == ("accuracy",) for use in tried)
