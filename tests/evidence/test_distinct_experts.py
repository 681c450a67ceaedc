"""The oracle of routed experts fires for what an expert kernel cannot bear, and for nothing
else.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from harness.evidence.experts import ChosenExperts
from harness.evidence.experts import distinct_experts as judge
from harness.evidence.records import Evidence, Run
from tests.transcripts import Approved

GOOD = [[0, 1], [3, 2], [1, 3]]


def routed(rows: list[list[int]], pattern: str = "nan") -> Run:
    return Run(pattern, [ChosenExperts("ids", torch.tensor(rows, dtype=torch.int32), 4)])


def test_distinct_experts_are_fine_in_any_order(evidence: Callable[..., Evidence]) -> None:
    judgement = judge(evidence(routed(GOOD)))
    assert judgement.findings == []
    assert judgement.looked_at == 6


def test_a_row_that_the_engine_masked_is_left_alone(evidence: Callable[..., Evidence]) -> None:
    assert judge(evidence(routed([*GOOD, [-1, -1]]))).findings == []


def test_a_token_with_impossible_experts_is_a_finding(
    evidence: Callable[..., Evidence], approved: Approved
) -> None:
    for row in [
        [0, 0],
        [0, 4],
        [-1, 2],
        [1 << 30, 1],
    ]:
        (finding,) = judge(evidence(routed([*GOOD, row]))).findings
        approved(finding.message, str(row))
        assert "3" in (finding.where or "")


def test_the_same_finding_under_two_patterns_is_told_once(
    evidence: Callable[..., Evidence],
) -> None:
    assert len(judge(evidence(routed([[0, 0]]), routed([[0, 0]], "zeros"))).findings) == 1


def test_nothing_routed_is_nothing_looked_at(evidence: Callable[..., Evidence]) -> None:
    assert judge(evidence(Run("nan"))).looked_at == 0
