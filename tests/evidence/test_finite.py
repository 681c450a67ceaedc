from __future__ import annotations

import pytest
import torch
from torch_poison.patterns import bits_view, sentinel_bits

from harness.core.cause_codes import Code
from harness.evidence.observed import finite as judge
from harness.evidence.records import Run

NAN, INF = float("nan"), float("inf")


def test_finite_rows_are_silent_and_counted(observe, evidence):
    judgement = judge(evidence(Run("nan", [observe()]), Run("zeros", [observe()])))
    assert judgement.findings == []
    assert judgement.looked_at == 2 * 3 * 16


def test_integers_are_not_counted_as_looked_at(observe, evidence, expected):
    ids = observe(expected.to(torch.int32))
    assert judge(evidence(Run("nan", [ids]))).looked_at == 0
    assert judge(evidence(Run("nan", [ids, observe()]))).looked_at == 3 * 16


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_one_non_finite_element_fires(observe, evidence, expected, value, dtype):
    tensor = expected.clone().to(dtype)
    tensor[2, 1, 7] = value
    finding = judge(evidence(Run("nan", [observe(tensor)]))).findings[0]
    assert "request 2" in finding.where and "[2, 1, 7]" in finding.where
    assert ("NaN" if value != value else "Inf") in finding.message


@pytest.mark.parametrize("row", [None, 0, 2])
def test_nan_in_all_rows_or_in_one_fires(observe, evidence, expected, row):
    tensor = expected.float()
    tensor[slice(None) if row is None else row] = NAN
    finding = judge(evidence(Run("nan", [observe(tensor, expected=None)]))).findings[0]
    assert finding.where.startswith("request 0-2" if row is None else f"request {row}")


def test_an_fp8_nan_fires(observe, evidence, expected):
    tensor = expected.to(torch.float8_e4m3fn)
    bits_view(tensor)[1, 0, 0] = 0x7F
    assert judge(evidence(Run("nan", [observe(tensor)]))).findings[0].bits == "0x7f float8_e4m3fn"


def test_dead_rows_may_hold_nan(observe, evidence, expected):
    tensor = expected.float()
    tensor[3] = NAN
    assert judge(evidence(Run("nan", [observe(tensor)]))).findings == []


def test_an_inf_that_the_reference_has_is_silent_but_a_nan_in_its_place_fires(
    observe, evidence, expected
):
    expected[1] = -INF
    tensor = expected.float()
    assert judge(evidence(Run("nan", [observe(tensor)]))).findings == []
    tensor[1] = NAN
    assert len(judge(evidence(Run("nan", [observe(tensor)]))).findings) == 1


def test_a_nan_is_excused_only_by_a_nan_of_the_reference(observe, evidence, expected):
    expected[1] = NAN
    tensor = expected.float()
    assert judge(evidence(Run("nan", [observe(tensor)]))).findings == []
    tensor[0, 0, 0] = NAN
    assert len(judge(evidence(Run("nan", [observe(tensor)]))).findings) == 1


def test_a_nan_computed_from_poison_names_its_site(observe, evidence, expected):
    poison = torch.zeros(16)
    bits_view(poison).fill_(sentinel_bits(torch.float32, "kv.tail"))
    tensor = expected.float()
    tensor[1] = (-(poison * 0 + 1)).reshape(2, 8)
    finding = judge(evidence(Run("nan", [observe(tensor)]))).findings[0]
    assert finding.site == "kv.tail"
    assert finding.cause == Code.NAN


def test_a_nan_without_a_payload_takes_the_site_of_its_row(observe, evidence, expected):
    tensor = expected.bfloat16()
    tensor[1] = NAN
    assert (
        judge(evidence(Run("nan", [observe(tensor, site="graph.pad_rows")]))).findings[0].site
        == "graph.pad_rows"
    )


def test_steps_of_one_tensor_are_one_finding_with_a_count(observe, evidence, expected, approved):
    tensor = torch.full_like(expected, NAN)
    run = Run("nan", [observe(tensor, name=f"logits of step {step}") for step in range(5)])
    findings = judge(evidence(run)).findings
    assert len(findings) == 1
    approved(findings[0].message)


def test_integers_are_finite(observe, evidence):
    assert (
        judge(evidence(Run("nan", [observe(torch.full((4, 2), -1), expected=None)]))).findings == []
    )


def test_an_empty_tensor_is_nothing_looked_at(observe, evidence):
    empty = observe(torch.zeros(0, 2), live=torch.zeros(0, dtype=torch.bool), expected=None)
    assert judge(evidence(Run("nan", [empty]))).looked_at == 0
