"""Results -> texts for other tools:

`summary.json`, and findings that are equal byte for byte for equal runs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from typing import Any

from harness.core.cases import Job
from harness.core.catalog import KERNELS
from harness.core.findings import Finding
from harness.core.records import (
    SCHEMA_VERSION,
    AccuracyRecord,
    Blame,
    CaseResult,
    FaultResult,
    Verdict,
)
from harness.store.coverage import EVERY_KERNEL, Coverage, coverages
from harness.store.run_folder import RunStore

FAULT_FIELDS = {"fault", "scenario", "case", "seen", "caught", "by", "blamed", "seconds", "reason"}
SUMMARY = "summary.json"
"""The file of a run folder with the summary. History and comparisons read it alone."""


def shown_verdicts(found: Container[str]) -> list[str]:
    """The names of the verdicts that a report counts:

    `known` and `not-run` only when in `found`, the others always.
    """
    at_need = (Verdict.KNOWN, Verdict.NOT_RUN)
    return [
        verdict.value for verdict in Verdict if verdict not in at_need or verdict.value in found
    ]


def totals(results: Sequence[CaseResult]) -> dict[str, int]:
    """How many cases ended in each of the :func:`shown_verdicts`."""
    counts = Counter(result.verdict.value for result in results)
    return {name: counts[name] for name in shown_verdicts(counts)}


def by_scenario(results: Iterable[CaseResult]) -> dict[str, list[CaseResult]]:
    groups: dict[str, list[CaseResult]] = {}
    for result in results:
        groups.setdefault(result.scenario, []).append(result)
    return groups


def summarise(store: RunStore, covered: Iterable[Coverage] | None = None) -> dict[str, Any]:
    """The summary of a run: totals, each case with its findings, each injected fault, and how many
    pairs and triples of conditions its passing calls showed.

    `covered` is what they showed, if the caller has counted it already.
    """
    plan = store.plan
    results = store.results()
    faults = store.faults()
    jobs = store.jobs_by_key()
    blames = store.blames()
    if covered is None:
        covered = covered_by(store)
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": plan.run_id,
        "started": plan.started,
        "seconds": plan.seconds,
        "environment": {**plan.environment, "command": plan.command, "options": plan.options},
        "source": plan.source.model_dump(mode="json", exclude={"files"}),
        "totals": totals(results),
        "cases": [_case(result, jobs[result.key], blames.get(result.key)) for result in results],
        "faults": [fault.model_dump(mode="json", include=FAULT_FIELDS) for fault in faults],
        "coverage": [
            {"op": one.op, "pairs": one.shown.counts(2), "triples": one.shown.counts(3)}
            for one in covered
            if one.kernel == EVERY_KERNEL
        ],
        "accuracy": [
            record.model_dump(mode="json") for record in accuracy_records([*results, *faults])
        ],
    }


def covered_by(store: RunStore) -> list[Coverage]:
    """What the calls of a run showed of the conditions of each op: of all kernels, then of each."""
    # What a kernel refuses counts nowhere, so its promises decide the shares. They are those that
    # it was judged by.
    with KERNELS.scoped(*store.plan.kernels):
        return list(coverages(store.results(), store.jobs_by_key()))


def accuracy_records(results: Sequence[CaseResult | FaultResult]) -> list[AccuracyRecord]:
    """The measurements of accuracy in the order of `results`.

    Each record names its case and its fault.
    """
    named = ((one, one.case if isinstance(one, FaultResult) else one.id) for one in results)
    return [
        one.accuracy.but(scenario=one.scenario, case=case, fault=one.fault)
        for one, case in named
        if one.accuracy
    ]


def to_json(summary: dict[str, Any]) -> str:
    """Strict JSON: no NaN or Infinity can get in."""
    return json.dumps(summary, allow_nan=False, indent=1) + "\n"


def _case(result: CaseResult, job: Job, blame: Blame | None) -> dict[str, Any]:
    entry = result.known
    known = (
        {"known": {"issue", "kernel"} if entry.kernel else {"issue", "engine", "versions"}}
        if entry
        else {}
    )
    shown = dict.fromkeys(
        ("id", "scenario", "refs", "verdict", "seconds", "reason", "cause", "findings"), True
    )
    facts = {
        "seed": job.case.seed,
        "device": job.kernel_device,
        "blamed": list(blame.sites) if blame else [],
    }
    return result.model_dump(mode="json", include={**shown, **known}) | facts


def canonical(store: RunStore) -> str:
    """One line of JSON for each case and each fault beside them, sorted: verdict, reason, findings,
    blame.

    Times, process ids, addresses, logs, machines and the order of cases are left out; they are in
    `results.jsonl`.
    """
    blames = store.blames()
    lines = []
    for result in store.results():
        blame = blames.get(result.key)
        named = result.model_dump(mode="json", include={"id", "fault", "verdict", "reason"})
        lines.append(
            _line(
                result,
                named,
                blame=blame.model_dump(mode="json", exclude={"cause"}) if blame else None,
            )
        )
    for fault in store.faults():
        lines.append(
            _line(
                fault,
                {"id": fault.case} | fault.model_dump(include={"fault", "caught", "by", "blamed"}),
            )
        )
    for control in store.unfinished_controls():
        left = {
            "id": control.job.case.id,
            "fault": control.use.name,
            "caught": None,
            "reason": "not judged",
        }
        lines.append(json.dumps(left))
    return "".join(f"{line}\n" for line in sorted(lines))


def _line(result: CaseResult | FaultResult, named: dict[str, Any], **more: Any) -> str:
    # Answers stand question by question, one string for each epoch.
    answers = list(result.accuracy.grid.rows) if result.accuracy else None
    found = named | {
        "findings": [_finding(finding) for finding in result.findings],
        **more,
        "accuracy": answers,
    }
    return json.dumps(found, allow_nan=False, ensure_ascii=False, sort_keys=False)


def _finding(finding: Finding) -> dict[str, Any]:
    """What a finding says to people, without addresses (oracle `address`), which differ in every
    process.
    """
    shown = {"oracle", "site", "tensor", "where", "bits", "message"}
    return finding.model_dump(
        mode="json", include=shown - {"bits"} if finding.oracle == "address" else shown
    )
