"""Results -> the content of `summary.json`: the file that other tools read. Pure functions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from typing import Any

from harness.core.records import AccuracyRecord, CaseResult, FaultResult, Verdict
from harness.store.run_folder import RunPlan


def shown_verdicts(found: Container[str]) -> list[str]:
    """The names of the verdicts that a report counts: `known` only when it is in `found`, the others always."""
    return [verdict.value for verdict in Verdict if verdict is not Verdict.KNOWN or verdict.value in found]


def totals(results: Sequence[CaseResult]) -> dict[str, int]:
    """How many cases ended in each of the :func:`shown_verdicts`."""
    counts = Counter(result.verdict.value for result in results)
    return {name: counts[name] for name in shown_verdicts(counts)}


def by_scenario(results: Iterable[CaseResult]) -> dict[str, list[CaseResult]]:
    """The results of each scenario, in the order of their first cases."""
    groups: dict[str, list[CaseResult]] = {}
    for result in results:
        groups.setdefault(result.scenario, []).append(result)
    return groups


def summarise(plan: RunPlan, results: Sequence[CaseResult], faults: Sequence[FaultResult]) -> dict[str, Any]:
    """The summary of a run: totals, each case with its findings, and each injected fault."""
    return {
        "run_id": plan.run_id,
        "started": plan.started,
        "seconds": plan.seconds,
        "environment": {**plan.environment, "command": plan.command, "options": plan.options},
        "totals": totals(results),
        "cases": [_case(result) for result in results],
        "faults": [_fault(fault) for fault in faults],
        "accuracy": [record.model_dump(mode="json") for record in accuracy_records([*results, *faults])],
    }


def accuracy_records(results: Sequence[CaseResult | FaultResult]) -> list[AccuracyRecord]:
    """The measurements of accuracy in the order of `results`. Each record names its case and its fault."""
    return [
        result.accuracy.model_copy(
            update={
                "scenario": result.scenario,
                "case": result.case if isinstance(result, FaultResult) else result.id,
                "fault": result.fault,
            }
        )
        for result in results
        if result.accuracy is not None
    ]


def to_json(summary: dict[str, Any]) -> str:
    """Strict JSON: no NaN or Infinity can get in."""
    return json.dumps(summary, allow_nan=False, indent=1) + "\n"


def _case(result: CaseResult) -> dict[str, Any]:
    known = {"known": {"issue", "engine", "versions"}} if result.known else {}
    shown = dict.fromkeys(("id", "scenario", "refs", "verdict", "seconds", "reason", "findings"), True)
    return result.model_dump(mode="json", include={**shown, **known})


def _fault(fault: FaultResult) -> dict[str, Any]:
    return fault.model_dump(mode="json", include={"fault", "scenario", "case", "caught", "by", "blamed", "seconds"})
