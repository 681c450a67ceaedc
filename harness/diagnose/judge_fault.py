"""Whether a fault put back on purpose was caught: by the right oracle, and blaming the right memory."""

from __future__ import annotations

from harness.core.catalog import FAULTS
from harness.core.records import Blame, CaseResult, FaultResult, Verdict
from harness.scenario.schema import FaultUse


def judge_fault(use: FaultUse, result: CaseResult, blame: Blame, trial_seconds: float) -> FaultResult:
    """Whether a fault was caught: by the oracle that its scenario declares, blaming the sites that it declares."""
    by = tuple(dict.fromkeys(finding.oracle for finding in result.findings))
    problems = []
    if result.verdict not in (Verdict.FAIL, Verdict.CRASH):
        problems.append(f"the case ended in {result.verdict.value}" + (f": {result.reason}" if result.reason else ""))
    elif use.caught_by not in by and not (use.caught_by == "answers" and by == ("crash",)):
        # An engine that died answered no question. Whether it dies depends on what the stale memory holds.
        problems.append(f"expected {use.caught_by} to fire, not {', '.join(by)}")
    if not problems and sorted(blame.sites) != sorted(use.blames):
        expected, got = ", ".join(use.blames) or "no site", ", ".join(blame.sites) or "no site"
        problems.append(f"expected the blame on {expected}, not on {got}: {blame.how}")
    return FaultResult(
        fault=use.name, scenario=result.scenario, case=result.id, ref=FAULTS.get(use.name).ref, caught=not problems,
        by=by, blamed=blame.sites, expected_by=use.caught_by, expected_blame=use.blames,
        seconds=round(result.seconds + trial_seconds, 3), reason="; ".join(problems), how=blame.how,
        findings=result.findings, accuracy=result.accuracy,
    )  # fmt: skip
