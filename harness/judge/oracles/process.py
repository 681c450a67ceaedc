"""Oracle `process`: a plug-in leaves its process as it was.

It is asked about runs after which something was changed. What the harness could not trust meanwhile
is a finding. Any other change is a remark: it was restored before the harness computed anything, so
the verdict stands.
"""

from __future__ import annotations

from harness.core.cause_codes import Code
from harness.core.records import Finding
from harness.judge.run_records import Evidence, Judgement
from harness.kernels.process_state import Change


def judge(evidence: Evidence) -> Judgement:
    """One finding for each failure of each kernel or import, and a remark for each other change."""
    changes = dict.fromkeys(change for run in evidence.runs for change in run.changes)
    findings = [
        Finding(
            oracle="process",
            message=f"{_sentence(change)}; other code would run with it: undo it before you return",
            cause=Code.REPLACED,
            kernel=change.who,
        )
        for change in changes
        if change.is_failure
    ]
    notes = [_sentence(change) for change in changes if not change.is_failure]
    return Judgement(findings, looked_at=len(evidence.runs), notes=notes)


def _sentence(change: Change) -> str:
    return f"{change.who} {change.what}" + (" (restored)" if change.is_restored else "")
