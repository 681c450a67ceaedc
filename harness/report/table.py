"""`results.csv`: one row for each case, for a spreadsheet or pandas; for a measured accuracy, one
for each epoch.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence

from harness.core.findings import Finding
from harness.core.records import AccuracyRecord, CaseResult, EpochAccuracy
from harness.report.run_view import RunView
from harness.report.wording import printable

COLUMNS = {
    "id": "the case",
    "scenario": "its scenario",
    "refs": "upstream issues and pull requests of the scenario",
    "verdict": "`pass`, `fail`, `crash`, `skip`, `error`, `known` or `not-run`",
    "seconds": "time of the case",
    "reason": "the verdict in one sentence",
    "cause": "the code of the reason",
    "fault": "the injected fault, if any",
    "num_findings": "how many findings",
    "oracles": "which oracles fired",
    "sites": "memory that the findings name",
    "tensors": "tensors that they name",
    "where": "elements, requests or steps that they name",
    "bits": "bit patterns that were found",
    "messages": "what the findings say",
    "blamed": "memory that is to blame",
    "blame_how": "how the search for blame ended",
    "looked_at": "how many elements or answers each oracle looked at",
    "params": "parameters of the case, as JSON",
    "command": "runs the case again",
    "task": "the questions",
    "model": "the model that answered",
    "model_hash": "of its weights, or the served name",
    "engine": "what ran it",
    "dtype": "its type of weights",
    "filter": "lm-eval's filter that judges",
    "model_note": "what must be known of the model",
    "epoch": "number of the epoch",
    "num_questions": "questions that were asked",
    "num_correct": "right answers",
    "accuracy": "their share; empty if nothing was asked",
    "ci_low": "lower end of Wilson's 95 % interval",
    "ci_high": "upper end",
    "baseline": "the baseline's name",
    "baseline_accuracy": "its accuracy over the same questions",
    "flips_reference": "what lost and gained count against",
    "lost": "right there, wrong here",
    "gained": "wrong there, right here",
    "p_value": "exact McNemar, two-sided",
    "changed": "answers with another text than in the first epoch",
    "unanswered": "questions without an answer",
    "empty": "empty answers",
    "unparsed": "answers in which the filter found nothing",
    "invalid_tokens": "answers with tokens that cannot be",
    "retried": "questions that needed a second attempt",
    "num_tokens": "generated tokens",
}
"""Column -> what it holds. Those from `task` on describe one epoch, and are empty for a case that
measures no accuracy.
"""

KNOWN_COLUMNS = ("known_issue", "known_in")
"""Further columns of a run with a known failure: the upstream issue, the engine and the versions
that have it.
"""

_OF_RECORD = {"task", "model", "model_hash", "engine", "dtype", "filter"}
_OF_EPOCH = set(COLUMNS) & set(EpochAccuracy.model_fields)


def render(view: RunView) -> str:
    """The table as CSV text.

    A cell that a spreadsheet would run as a formula gets an apostrophe before it.
    """
    rows = []
    for result in view.results:
        blame = view.blames.get(result.key)
        row = {
            **_columns(result),
            "known_issue": result.known.issue if result.known else "",
            "known_in": result.known.where if result.known else "",
            "blamed": " ".join(blame.sites) if blame else "",
            "blame_how": blame.how if blame else "",
            "params": json.dumps(
                view.jobs[result.key].case.values(), sort_keys=True, allow_nan=False
            ),
            "command": view.command(result),
        }
        record = result.accuracy
        rows += (
            [row | _of_epoch(record, epoch) for epoch in record.epochs]
            if record and record.epochs
            else [row]
        )
    known = KNOWN_COLUMNS if any(row["known_issue"] for row in rows) else ()
    text = io.StringIO()
    table = csv.DictWriter(text, [*COLUMNS, *known], extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    table.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _of_epoch(record: AccuracyRecord, epoch: EpochAccuracy) -> dict[str, object]:
    row = record.model_dump(include=_OF_RECORD) | epoch.model_dump(include=_OF_EPOCH)
    row |= {"model_note": record.note, "ci_low": epoch.interval[0], "ci_high": epoch.interval[1]}
    if not epoch.num_questions:
        # Without questions there is no accuracy. A 0 would read as one.
        row |= dict.fromkeys(("accuracy", "ci_low", "ci_high"))
    if record.baseline:
        row |= {"baseline": record.baseline.name, "baseline_accuracy": record.baseline.accuracy}
    if epoch.flips:
        row |= epoch.flips.model_dump(include={"lost", "gained", "p_value"})
        row["flips_reference"] = epoch.flips.reference
    return row


def _columns(result: CaseResult) -> dict[str, object]:
    findings = result.findings
    return {
        **result.model_dump(
            mode="json", include={"id", "scenario", "verdict", "seconds", "reason", "cause"}
        ),
        "refs": " ".join(result.refs),
        "fault": result.fault or "",
        "num_findings": len(findings),
        "oracles": _distinct(findings, "oracle"),
        "sites": _distinct(findings, "site"),
        "tensors": _distinct(findings, "tensor"),
        "where": _distinct(findings, "where", "; "),
        "bits": _distinct(findings, "bits"),
        "messages": "; ".join(finding.message for finding in findings),
        "looked_at": json.dumps(result.looked_at, sort_keys=True),
    }


def _distinct(findings: Sequence[Finding], field: str, separator: str = " ") -> str:
    return separator.join(
        dict.fromkeys(filter(None, (getattr(finding, field) for finding in findings)))
    )


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = printable(value)
    return "'" + text if text[:1] in ("=", "+", "-", "@", "\t") else text
