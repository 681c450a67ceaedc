"""Oracles `cold_warm` and `flush`: the same answers twice, and each looks at its own pairs only."""

from __future__ import annotations

import pytest
import torch

from harness.core.catalog import ORACLES
from harness.evidence.pairs import Pair
from harness.evidence.records import Run

LOGITS = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
BOTH = pytest.mark.parametrize("oracle", ["cold_warm", "flush"])


def pair(oracle: str, second: torch.Tensor, live: tuple[bool, ...] = (True,) * 4) -> Run:
    made = Pair(
        oracle,
        "request 1 of epoch 1",
        LOGITS,
        second,
        torch.tensor(live),
        "engine.logits.bf16",
        "token",
    )
    return Run("nan", [made])


@BOTH
def test_answers_within_the_bound_are_silent(oracle, evidence):
    judgement = ORACLES.get(oracle).judge(evidence(pair(oracle, LOGITS * 1.001)))
    assert judgement.findings == [] and judgement.looked_at == LOGITS.numel()


@BOTH
@pytest.mark.parametrize("change", [1.2, -1.0, torch.nan], ids=["scaled", "negated", "nan"])
def test_another_answer_fires_and_says_where(oracle, change, evidence):
    second = LOGITS.clone()
    second[2] *= change
    findings = ORACLES.get(oracle).judge(evidence(pair(oracle, second))).findings
    assert len(findings) == 1
    assert findings[0].where.startswith("token 2")
    assert "request 1" in findings[0].tensor and "epoch 1" in findings[0].tensor


@BOTH
def test_rows_after_another_token_are_not_compared(oracle, evidence):
    second = LOGITS.clone()
    second[2] *= 2.0
    judgement = ORACLES.get(oracle).judge(
        evidence(pair(oracle, second, (True, True, False, False)))
    )
    assert judgement.findings == [] and judgement.looked_at == LOGITS.numel() // 2


@BOTH
def test_pairs_of_another_oracle_are_nothing_looked_at(oracle, evidence):
    other = "flush" if oracle == "cold_warm" else "cold_warm"
    assert ORACLES.get(oracle).judge(evidence(pair(other, LOGITS * 2))).looked_at == 0
