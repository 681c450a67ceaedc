"""Results -> the content of `summary.json`: the file that other tools read. Pure functions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Sequence
from typing import Any

from harness.core.records import AccuracyRecord, CaseResult, FaultResult, Verdict
from harness.store.run_folder import RunPlan

SUMMARY_FINDING_FIELDS = ("oracle", "site", "tensor", "where", "bits", "message")


def shown_verdicts(found: Container[str]) -> list[str]:
    """The names of the verdicts that a report counts: `known` only when it is in `found`, the others always."""
    return [verdict.value for verdict in Verdict if verdict is not Verdict.KNOWN or verdict.value in found]


def totals(results: Sequence[CaseResult]) -> dict[str, int]:
    """How many cases ended in each of the :func:`shown_verdicts`."""
    counts = Counter(result.verdict.value for result in results)
    return {name: counts[name] for name in shown_verdicts(counts)}


def summarise(plan: RunPlan, results: Sequence[CaseResult], faults: Sequence[FaultResult]) -> dict[str, Any]:
    """The summary of a run: totals, each case with its findings, and each fault put back."""
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
    """What was measured of accuracy, in the order given; each record names its case and its fault."""
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
    findings = [finding.model_dump(mode="json") for finding in result.findings]
    known = {"known": result.known.model_dump(include={"issue", "engine", "versions"})} if result.known else {}
    return {
        "id": result.id,
        "scenario": result.scenario,
        "refs": list(result.refs),
        "verdict": result.verdict.value,
        "seconds": result.seconds,
        "reason": result.reason,
        "findings": [{name: finding[name] for name in SUMMARY_FINDING_FIELDS} for finding in findings],
        **known,
    }


def _fault(fault: FaultResult) -> dict[str, Any]:
    return {
        "fault": fault.fault,
        "scenario": fault.scenario,
        "case": fault.case,
        "caught": fault.caught,
        "by": list(fault.by),
        "blamed": list(fault.blamed),
        "seconds": fault.seconds,
    }
