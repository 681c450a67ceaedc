"""The findings of a run as text that is equal byte for byte for equal runs.

Times, process ids, addresses, logs, machines and the order of cases are left out; they are in `results.jsonl`.
"""

from __future__ import annotations

import json
from typing import Any

from harness.core.records import AccuracyRecord, Blame, CaseResult, FaultResult, Finding
from harness.store.run_folder import RunStore


def canonical(store: RunStore) -> str:
    """One line of JSON for each case and each fault beside them, sorted: verdict, reason, findings, blame."""
    blames = store.blames()
    lines = [_line(_case(result, blames.get(result.key))) for result in store.results()]
    lines += [_line(_fault(fault)) for fault in store.faults()]
    return "".join(f"{line}\n" for line in sorted(lines))


def _case(result: CaseResult, blame: Blame | None) -> dict[str, Any]:
    return {
        "id": result.id,
        "fault": result.fault,
        "verdict": result.verdict.value,
        "reason": result.reason,
        "findings": [_finding(finding) for finding in result.findings],
        "blame": blame.model_dump(mode="json") if blame else None,
        "accuracy": _answers(result.accuracy),
    }


def _fault(fault: FaultResult) -> dict[str, Any]:
    return {
        "id": fault.case,
        "fault": fault.fault,
        "caught": fault.caught,
        "by": fault.by,
        "blamed": fault.blamed,
        "findings": [_finding(finding) for finding in fault.findings],
        "accuracy": _answers(fault.accuracy),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    """A finding without the addresses of oracle `address`, which differ in every process."""
    return finding.model_dump(mode="json", exclude={"bits"} if finding.oracle == "address" else None)


def _answers(record: AccuracyRecord | None) -> list[str] | None:
    """Question by question, one string for each epoch."""
    return list(record.grid.rows) if record else None


def _line(found: dict[str, Any]) -> str:
    return json.dumps(found, allow_nan=False, ensure_ascii=False, sort_keys=False)
