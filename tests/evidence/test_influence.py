"""`insensitive` fires for an output that keeps its bits although its expected value moves."""

from __future__ import annotations

import torch

from harness.core.catalog import ORACLES
from harness.core.cause_codes import Code
from harness.evidence.influence import Influence
from harness.evidence.records import Evidence, Judgement, Run


def judged(after: torch.Tensor, expected_after: torch.Tensor) -> Judgement:
    before = torch.ones(3, 4)
    one = Influence(
        "kv_cache[2, 5]",
        "out",
        before,
        after,
        before.double(),
        expected_after,
        torch.tensor([True, True, False]),
        "request",
    )
    run = Run("nan")
    run.evidence.append(one)
    judgement: Judgement = ORACLES.get("insensitive").judge(Evidence(None, [run]))  # type: ignore[arg-type]
    return judgement


MOVED = torch.tensor([[1.0] * 4, [2.0] * 4, [2.0] * 4]).double()


def test_a_row_that_keeps_its_bits_is_named_with_the_input() -> None:
    judgement = judged(torch.ones(3, 4), MOVED)
    (finding,) = judgement.findings
    assert finding.cause == Code.CHEATS and "kv_cache[2, 5]" in finding.message
    assert finding.where == "request 1"


def test_a_row_that_follows_is_right_and_a_dead_one_is_not_judged() -> None:
    judgement = judged(torch.tensor([[1.0] * 4, [2.0] * 4, [1.0] * 4]), MOVED)
    assert not judgement.findings and judgement.looked_at == 1


def test_a_row_of_nan_says_nothing_about_what_the_kernel_reads() -> None:
    nan = torch.full((3, 4), float("nan"))
    before = torch.ones(3, 4).double()
    live = torch.ones(3, dtype=torch.bool)
    one = Influence("q[0]", "out", nan, nan, before, MOVED, live, "request")
    judgement = ORACLES.get("insensitive").judge(Evidence(None, [Run("nan", [one])]))  # type: ignore[arg-type]
    assert not judgement.findings and judgement.looked_at == 2


def test_a_change_within_rounding_asks_nothing() -> None:
    judgement = judged(torch.ones(3, 4), torch.full((3, 4), 1.001).double())
    assert judgement.looked_at == 0 and not judgement.findings
