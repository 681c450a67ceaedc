from __future__ import annotations

import pytest
import torch

from harness.core.errors import UnknownNameError
from harness.evidence.observed import reference as judge
from harness.evidence.records import Run


def test_the_right_answer_is_silent(observe, evidence):
    judgement = judge(evidence(Run("nan", [observe()])))
    assert judgement.findings == []
    assert judgement.looked_at == 3 * 16


def test_every_classic_wrong_answer_fires(observe, evidence, expected, spoil):
    judgement = judge(evidence(Run("nan", [observe(spoil(expected.float()))])))
    assert [finding.tensor for finding in judgement.findings] == ["out"]
    assert judgement.findings[0].oracle == "reference"
    assert "request" in judgement.findings[0].where


def test_a_wrong_answer_in_a_later_run_fires(observe, evidence, expected):
    runs = Run("nan", [observe()]), Run("zeros", [observe(-expected.float())])
    findings = judge(evidence(*runs)).findings
    assert len(findings) == 1
    assert "pattern zeros" in findings[0].message


def test_rows_that_are_not_live_may_hold_anything(observe, evidence, expected):
    tensor = expected.float()
    tensor[3] = float("nan")
    assert judge(evidence(Run("nan", [observe(tensor)]))).findings == []


def test_a_wrong_shape_fires(observe, evidence, expected, approved):
    findings = judge(evidence(Run("nan", [observe(expected.float()[:, :1])]))).findings
    approved(findings[0].message)


def test_the_finding_tells_the_row_the_worst_element_and_its_bits(observe, evidence, expected):
    tensor = expected.float()
    tensor[1, 1, 3] = 99.0
    finding = judge(evidence(Run("nan", [observe(tensor)]))).findings[0]
    assert "request 1" in finding.where and "[1, 1, 3]" in finding.where
    assert finding.bits == "0x42c60000 float32"
    assert "99 where" in finding.message


def test_the_same_mismatch_under_several_patterns_is_one_finding_with_a_count(
    observe, evidence, expected, approved
):
    runs = [Run(pattern, [observe(-expected.float())]) for pattern in ("nan", "zeros", "max")]
    findings = judge(evidence(*runs)).findings
    assert len(findings) == 1
    approved(findings[0].message)


def test_expert_ids_are_compared_exactly(observe, evidence):
    ids = torch.tensor([[0, 1], [2, 3], [4, 5], [6, 7]])
    wrong = ids.int()
    wrong[2, 0] = 9
    right = observe(ids.int(), expected=ids, bound="")
    assert judge(evidence(Run("nan", [right]))).findings == []
    assert (
        judge(evidence(Run("nan", [observe(wrong, expected=ids, bound="")])))
        .findings[0]
        .where.startswith("request 2")
    )


def test_a_tensor_without_reference_is_not_looked_at(observe, evidence):
    assert judge(evidence(Run("nan", [observe(expected=None)]))).looked_at == 0


def test_an_unknown_bound_is_the_harness_own_error(observe, evidence):
    with pytest.raises(UnknownNameError):
        judge(evidence(Run("nan", [observe(bound="mla_decode.out")])))


@pytest.mark.parametrize(
    ("factor", "hint"), [(1.442695, "log2(e): it is in base 2"), (0.693147, "ln 2: a natural")]
)
def test_an_lse_in_another_base_is_named(observe, evidence, expected, factor, hint):
    found = observe((expected * factor).float(), name="lse", bound="mla_decode.lse.bf16")
    (finding,) = judge(evidence(Run("nan", [found]))).findings
    assert hint in finding.message and finding.excess > 1


def test_an_lse_that_is_wrong_in_one_value_more_and_a_scaled_output_have_no_such_hint(
    observe, evidence, expected
):
    lse = (expected * 1.442695).float()
    lse[0, 0, 0] = 7.0
    for found in (
        observe(lse, name="lse", bound="mla_decode.lse.bf16"),
        observe((expected * 1.442695).float()),
    ):
        (finding,) = judge(evidence(Run("nan", [found]))).findings
        assert "base 2" not in finding.message
