"""`results.csv`: one row for each case, for a spreadsheet or pandas; of a measured accuracy, one for each epoch."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator

from harness.core.records import AccuracyRecord, CaseResult, EpochAccuracy
from harness.report.command import reproduce
from harness.report.wording import printable
from harness.store.run_folder import RunStore

COLUMNS = (
    "id", "scenario", "refs", "verdict", "seconds", "reason", "fault", "num_findings", "oracles", "sites", "tensors",
    "where", "bits", "messages", "blamed", "blame_how", "looked_at", "params", "command",
    "task", "model", "model_hash", "engine", "dtype", "filter", "model_note", "epoch", "num_questions", "num_correct",
    "accuracy", "ci_low", "ci_high", "baseline", "baseline_accuracy", "flips_reference", "lost", "gained", "p_value",
    "changed", "unanswered", "empty", "unparsed", "invalid_tokens", "retried", "num_tokens",
)  # fmt: skip
"""The last two lines are of one epoch, and empty for a case that measures no accuracy."""


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
            "params": json.dumps(jobs[result.key].case.values(), sort_keys=True, allow_nan=False),
            "command": reproduce(result, store.plan.options),
        }
        for epoch in _epochs(result):
            writer.writerow({name: _cell(value) for name, value in {**row, **epoch}.items()})
    return stream.getvalue()


def _epochs(result: CaseResult) -> Iterator[dict[str, object]]:
    """The columns of each epoch; one empty set for a case without."""
    record = result.accuracy
    if record is None or not record.epochs:
        yield {}
        return
    for epoch in record.epochs:
        yield {**_of_record(record), **_of_epoch(epoch)}


def _of_record(record: AccuracyRecord) -> dict[str, object]:
    use = record.baseline
    return {
        "task": record.task,
        "model": record.model,
        "model_hash": record.model_hash,
        "engine": record.engine,
        "dtype": record.dtype,
        "filter": record.filter,
        "model_note": record.note,
        "baseline": use.name if use else "",
        "baseline_accuracy": use.accuracy if use else "",
    }


def _of_epoch(epoch: EpochAccuracy) -> dict[str, object]:
    flips = epoch.flips
    return {
        "epoch": epoch.epoch,
        "num_questions": epoch.num_questions,
        "num_correct": epoch.num_correct,
        # Of an epoch that was never asked there is no accuracy, and 0 would be read as one.
        "accuracy": epoch.accuracy if epoch.num_questions else "",
        "ci_low": epoch.interval[0] if epoch.num_questions else "",
        "ci_high": epoch.interval[1] if epoch.num_questions else "",
        "flips_reference": flips.reference if flips else "",
        "lost": flips.lost if flips else "",
        "gained": flips.gained if flips else "",
        "p_value": flips.p_value if flips else "",
        "changed": epoch.changed,
        "unanswered": epoch.unanswered,
        "empty": epoch.empty,
        "unparsed": epoch.unparsed,
        "invalid_tokens": epoch.invalid_tokens,
        "retried": epoch.retried,
        "num_tokens": epoch.num_tokens,
    }


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
