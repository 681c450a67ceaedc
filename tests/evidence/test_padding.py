"""Oracle `padding`: fires on one bit of one live row, and looks at nothing but pairs that are its
own.
"""

from __future__ import annotations

import pytest
import torch

from harness.evidence.pairs import Pair
from harness.evidence.pairs import padding as judge
from harness.evidence.records import Run


def pair(second: torch.Tensor, oracle: str = "padding", bound: str = "") -> Pair:
    return Pair(
        oracle, "logits of step 3 beside 2 padded requests", LOGITS, second, LIVE, bound, "row"
    )


LOGITS = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
LIVE = torch.ones(3, dtype=torch.bool)


def test_answers_that_agree_bit_by_bit_are_silent(evidence):
    judgement = judge(evidence(Run("nan", [pair(LOGITS.clone())])))
    assert judgement.findings == []
    assert judgement.looked_at == LOGITS.numel()


def test_every_classic_wrong_answer_fires(evidence, spoil):
    findings = judge(evidence(Run("nan", [pair(spoil(LOGITS))]))).findings
    assert len(findings) == 1
    assert findings[0].oracle == "padding" and "2 padded" in findings[0].message


def test_the_last_bit_of_one_element_fires(evidence):
    moved = LOGITS.clone()
    moved[2, 5] = torch.nextafter(moved[2, 5], torch.tensor(9.0))
    finding = judge(evidence(Run("nan", [pair(moved)]))).findings[0]
    assert "row 2" in finding.where and "[2, 5]" in finding.where


@pytest.mark.parametrize(("change", "fires"), [(1e-6, False), (0.5, True)])
def test_within_a_bound_only_what_is_beyond_it_fires(evidence, change: float, fires: bool):
    findings = judge(
        evidence(Run("nan", [pair(LOGITS + change, bound="engine.logits.bf16")]))
    ).findings
    assert bool(findings) == fires


def test_pairs_of_other_oracles_are_not_looked_at(evidence):
    judgement = judge(evidence(Run("nan", [pair(LOGITS + 1, oracle="flush")])))
    assert judgement.findings == [] and judgement.looked_at == 0
