"""Results -> texts for other tools: `summary.json`, and findings that are equal byte for byte for equal runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from typing import Any

from harness.core.mutants import MutantResult
from harness.core.records import AccuracyRecord, Blame, CaseResult, FaultResult, Finding, Verdict
from harness.store.mutants import score
from harness.store.run_folder import RunStore

FAULT_FIELDS = {"fault", "scenario", "case", "caught", "by", "blamed", "seconds"}


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


def summarise(store: RunStore) -> dict[str, Any]:
    """The summary of a run: totals, each case with its findings, and each injected fault."""
    plan, results, faults, mutants = store.plan, store.results(), store.faults(), store.mutants()
    return {
        "run_id": plan.run_id,
        "started": plan.started,
        "seconds": plan.seconds,
        "environment": {**plan.environment, "command": plan.command, "options": plan.options},
        "totals": totals(results),
        "cases": [_case(result) for result in results],
        "faults": [fault.model_dump(mode="json", include=FAULT_FIELDS) for fault in faults],
        "accuracy": [record.model_dump(mode="json") for record in accuracy_records([*results, *faults])],
        **({"mutants": _mutants(mutants)} if mutants else {}),
    }


def _mutants(results: Sequence[MutantResult]) -> dict[str, Any]:
    found = score(results)
    shown = [one.model_dump(mode="json", exclude={"schema_version"}) for one in results]
    return {"rate": found.rate, "interval": found.interval, "statement": found.statement, "mutants": shown}


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


def canonical(store: RunStore) -> str:
    """One line of JSON for each case and each fault beside them, sorted: verdict, reason, findings, blame.

    Times, process ids, addresses, logs, machines and the order of cases are left out; they are in `results.jsonl`.
    """
    blames = store.blames()
    lines = [_line(_canonical_case(result, blames.get(result.key))) for result in store.results()]
    lines += [_line(_canonical_fault(fault)) for fault in store.faults()]
    return "".join(f"{line}\n" for line in sorted(lines))


def _canonical_case(result: CaseResult, blame: Blame | None) -> dict[str, Any]:
    return {
        **result.model_dump(mode="json", include={"id", "fault", "verdict", "reason"}),
        "findings": [_finding(finding) for finding in result.findings],
        "blame": blame.model_dump(mode="json") if blame else None,
        "accuracy": _answers(result.accuracy),
    }


def _canonical_fault(fault: FaultResult) -> dict[str, Any]:
    return {
        "id": fault.case,
        **fault.model_dump(include={"fault", "caught", "by", "blamed"}),
        "findings": [_finding(finding) for finding in fault.findings],
        "accuracy": _answers(fault.accuracy),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    """A finding without its line of code, and without addresses (oracle `address`), which differ in every process."""
    return finding.model_dump(mode="json", exclude={"at", "bits"} if finding.oracle == "address" else {"at"})


def _answers(record: AccuracyRecord | None) -> list[str] | None:
    """Question by question, one string for each epoch."""
    return list(record.grid.rows) if record else None


def _line(found: dict[str, Any]) -> str:
    return json.dumps(found, allow_nan=False, ensure_ascii=False, sort_keys=False)
