"""Whether an injected fault was caught by the right oracle, with the blame on the right memory."""

from __future__ import annotations

from harness.core.catalog import FAULTS
from harness.core.records import FAILED, Blame, CaseResult, FaultResult
from harness.scenario.schema import FaultUse


def judge_fault(use: FaultUse, result: CaseResult, blame: Blame, trial_seconds: float) -> FaultResult:
    """Compare a result and its blame with the oracle and sites that the scenario declares for a fault."""
    by = tuple(dict.fromkeys(finding.oracle for finding in result.findings))
    problems = []
    if result.verdict not in FAILED:
        problems.append(f"the case ended in {result.verdict.value}" + (f": {result.reason}" if result.reason else ""))
    elif use.caught_by not in by and not (use.caught_by == "answers" and by == ("crash",)):
        # An engine that died gave no answers. The stale memory decides whether it dies.
        problems.append(f"expected {use.caught_by} to fire, not {', '.join(by)}")
    if not problems and sorted(blame.sites) != sorted(use.blames):
        expected, got = ", ".join(use.blames) or "no site", ", ".join(blame.sites) or "no site"
        problems.append(f"expected the blame on {expected}, not on {got}: {blame.how}")
    return FaultResult(
        fault=use.name,
        scenario=result.scenario,
        case=result.id,
        ref=FAULTS.get(use.name).ref,
        caught=not problems,
        by=by,
        blamed=blame.sites,
        expected_by=use.caught_by,
        expected_blame=use.blames,
        seconds=round(result.seconds + trial_seconds, 3),
        reason="; ".join(problems),
        how=blame.how,
        findings=result.findings,
        accuracy=result.accuracy,
    )
