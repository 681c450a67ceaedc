"""`results.csv`: one row for each case, for a spreadsheet or pandas."""

from __future__ import annotations

import csv
import io
import json

from harness.records import CaseResult
from harness.report.command import reproduce
from harness.report.wording import printable
from harness.results.store import RunStore

COLUMNS = (
    "id", "scenario", "refs", "verdict", "seconds", "reason", "fault", "num_findings", "oracles", "sites", "tensors",
    "where", "bits", "messages", "blamed", "blame_how", "looked_at", "params", "command",
)  # fmt: skip


def render(store: RunStore) -> str:
    """The table as CSV text. A cell that a spreadsheet would run as a formula gets an apostrophe before it."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    blames, jobs = store.blames(), store.jobs_by_key()
    for result in store.results():
        blame = blames.get(result.key)
        row = {
            **_columns(result),
            "blamed": " ".join(blame.sites) if blame else "",
            "blame_how": blame.how if blame else "",
            "params": json.dumps(jobs[result.key].case.params, sort_keys=True, allow_nan=False),
            "command": reproduce(result, store.plan.options),
        }
        writer.writerow({name: _cell(value) for name, value in row.items()})
    return stream.getvalue()


def _columns(result: CaseResult) -> dict[str, object]:
    findings = result.findings
    return {
        "id": result.id,
        "scenario": result.scenario,
        "refs": " ".join(result.refs),
        "verdict": result.verdict.value,
        "seconds": result.seconds,
        "reason": result.reason,
        "fault": result.fault or "",
        "num_findings": len(findings),
        "oracles": " ".join(dict.fromkeys(finding.oracle for finding in findings)),
        "sites": " ".join(dict.fromkeys(finding.site for finding in findings if finding.site)),
        "tensors": " ".join(dict.fromkeys(finding.tensor for finding in findings if finding.tensor)),
        "where": "; ".join(dict.fromkeys(finding.where for finding in findings if finding.where)),
        "bits": " ".join(dict.fromkeys(finding.bits for finding in findings if finding.bits)),
        "messages": "; ".join(finding.message for finding in findings),
        "looked_at": json.dumps(result.looked_at, sort_keys=True),
    }


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = printable(value)
    return "'" + text if text[:1] in ("=", "+", "-", "@", "\t") else text
