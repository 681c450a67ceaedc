"""Oracles `conserved` and `tokens`: a lost block or request, and a token that is not the largest
logit.
"""

from __future__ import annotations

import pytest
import torch

from harness.core.cause_codes import Code
from harness.evidence.counts import Count, conserved, policy
from harness.evidence.records import Run
from harness.evidence.tokens import tokens


def test_a_count_that_is_kept_is_no_finding(evidence):
    judgement = conserved(
        evidence(Run("nan", [Count("free blocks", 7, 7), Count("tokens of request 0", 3, 3)]))
    )
    assert (judgement.looked_at, judgement.findings) == (2, [])


def test_a_lost_block_is_found_with_its_step(evidence, approved):
    runs = [
        Run(pattern, [Count("blocks that are free or owned", 7, 6, "step 4")])
        for pattern in ("nan", "max")
    ]
    (finding,) = conserved(evidence(*runs)).findings
    approved(finding.message)
    assert (finding.oracle, finding.where) == ("conserved", "step 4")


def test_a_choice_of_the_scheduler_is_judged_by_policy_alone_and_the_finding_says_so(
    evidence, approved
):
    left = evidence(
        Run(
            "nan",
            [
                Count("requests that wait", 0, 2, "step 4", "policy"),
                Count("free blocks", 7, 7),
            ],
        )
    )
    assert conserved(left).findings == [] and conserved(left).looked_at == 1
    (finding,) = policy(left).findings
    assert finding.oracle == "policy"
    approved(finding.message)


@pytest.fixture
def logits():
    """Three rows of logits, where tokens 2, 0 and 1 stand clear."""
    return torch.tensor([[0.0, 1.0, 9.0], [9.0, 0.0, 1.0], [1.0, 9.0, 0.0]], dtype=torch.float64)


def judged(evidence, observe, taken, expected, own=None):
    own = expected.float() if own is None else own
    live = torch.ones(len(own), dtype=torch.bool)
    observed = observe(
        own, live=live, expected=expected, bound="engine.logits.fp32", tokens=torch.tensor(taken)
    )
    return tokens(evidence(Run("nan", [observed])))


def test_the_largest_logit_is_no_finding(evidence, observe, logits):
    judgement = judged(evidence, observe, [2, 0, 1], logits)
    assert (judgement.looked_at, judgement.findings) == (3, [])


@pytest.mark.parametrize("taken", [[2, 1, 1], [2, 3, 1], [2, -1, 1]])
def test_another_token_or_none_of_the_vocabulary_is_found(evidence, observe, logits, taken):
    (finding,) = judged(evidence, observe, taken, logits).findings
    assert finding.where == "request 1"
    assert finding.cause == Code.WRONG_TOKEN and f"the first is {taken[1]}" in finding.message


def test_a_token_of_the_engine_that_the_reference_puts_beyond_the_bound_is_found(
    evidence, observe, logits
):
    own = logits.float().roll(1, dims=1)
    (finding,) = judged(evidence, observe, own.argmax(dim=1).tolist(), logits, own).findings
    assert finding.where == "request 0-2"


def test_either_of_two_tokens_within_the_bound_may_be_taken(evidence, observe, logits):
    logits[0, 1] = 9.0 - 1e-6
    own = logits.float()
    own[0, 1] = 9.1
    assert judged(evidence, observe, [1, 0, 1], logits, own).findings == []
