from __future__ import annotations

import torch

from harness.evidence.non_interference import non_interference as judge
from harness.evidence.records import Run


def test_equal_runs_are_silent_and_counted(observe, evidence):
    judgement = judge(evidence(*(Run(pattern, [observe()]) for pattern in ("nan", "zeros", "max"))))
    assert judgement.findings == []
    assert judgement.looked_at == 2 * 3 * 16


def test_one_run_alone_is_nothing_looked_at(observe, evidence):
    assert judge(evidence(Run("nan", [observe()]))).looked_at == 0


def test_every_classic_wrong_answer_in_one_of_two_runs_fires(observe, evidence, expected, spoil):
    findings = judge(
        evidence(Run("nan", [observe()]), Run("zeros", [observe(spoil(expected.float()))]))
    ).findings
    assert findings and {finding.oracle for finding in findings} == {"non_interference"}


def test_a_difference_of_one_bit_in_one_element_fires(observe, evidence, expected, approved):
    other = expected.float()
    other[1, 1, 2] = torch.nextafter(other[1, 1, 2], torch.tensor(9.0))
    finding = judge(evidence(Run("nan", [observe()]), Run("max", [observe(other)]))).findings[0]
    assert "request 1" in finding.where and "[1, 1, 2]" in finding.where
    approved(finding.message)


def test_a_difference_in_dead_rows_is_silent(observe, evidence, expected):
    other = expected.float()
    other[3] = 7
    assert judge(evidence(Run("nan", [observe()]), Run("max", [observe(other)]))).findings == []


def test_equal_rows_of_zeros_or_nan_show_nothing_and_fire(observe, evidence, expected):
    for value in (0.0, float("nan")):
        tensor = expected.float()
        tensor[2] = value
        finding = judge(
            evidence(Run("nan", [observe(tensor)]), Run("zeros", [observe(tensor)]))
        ).findings[0]
        assert finding.where == "request 2"
        assert "equal elements" in finding.message


def test_rows_that_should_be_zero_are_silent(observe, evidence, expected):
    expected[2] = 0
    tensor = expected.float()
    assert (
        judge(evidence(Run("nan", [observe(tensor)]), Run("zeros", [observe(tensor)]))).findings
        == []
    )


def test_runs_that_took_another_course_fire(observe, evidence):
    findings = judge(
        evidence(Run("nan", [observe()]), Run("zeros", [observe(), observe(name="more")]))
    ).findings
    assert "another course" in findings[0].message
