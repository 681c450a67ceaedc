"""Oracle `process`: a plug-in leaves its process as it was.

It is asked about runs after which something was changed: a
:class:`harness.kernels.process_state.ProcessChange` is its evidence. What the harness could not
trust meanwhile is a finding. Any other change is a remark: it was restored before the harness
computed anything, so the verdict stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.core.cause_codes import Code
from harness.core.findings import Finding
from harness.core.oracles import OracleSpec
from harness.evidence.records import Evidence, Judgement

if TYPE_CHECKING:
    from harness.kernels.process_state import ProcessChange


def process(evidence: Evidence) -> Judgement:
    """One finding for each failure of each kernel or import, and a remark for each other change."""
    from harness.kernels.process_state import ProcessChange

    changes = dict.fromkeys(change for change, _ in evidence.all(ProcessChange))
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


def _sentence(change: ProcessChange) -> str:
    return f"{change.who} {change.what}" + (" (restored)" if change.is_restored else "")


ORACLES = (
    OracleSpec(
        "process",
        "a plug-in leaves the functions and modes of torch, and the code of the harness, as they"
        " were",
        process,
        rank=20,
    ),
)
