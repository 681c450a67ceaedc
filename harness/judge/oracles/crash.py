"""Oracle `crash`: every run came to its end. Deaths and hangs of the whole process are told by the runner."""

from __future__ import annotations

from harness.core.errors import CaptureError, IllegalAddress, KernelError
from harness.core.finding_words import merged
from harness.core.records import Finding
from harness.judge.run_records import Evidence, Judgement

CRASHES: tuple[type[Exception], ...] = (IllegalAddress, KernelError, CaptureError)
"""What the system under test may raise; anything else is the harness's own fault."""

_INDEX_SITES = (
    ("metadata", "sched_meta"),
    ("block_table column", "sched_meta"),
    ("block_table", "block_table.pad"),
    ("expert", "router.ids"),
)
"""The words by which a bounds check names what was indexed -> the memory that the index came from."""


def judge(evidence: Evidence) -> Judgement:
    """One finding for each run that an exception ended."""
    findings: list[Finding] = []
    for run in evidence.runs:
        if run.error is not None:
            findings.append(
                Finding(
                    oracle="crash",
                    site=_site(run.error),
                    message=f"{_sentence(run.error)} (pattern {run.pattern})",
                )
            )
    return Judgement(merged(findings), looked_at=len(evidence.runs))


def _sentence(error: Exception) -> str:
    lines = str(error).strip().splitlines() or ["no message"]
    text = lines[0] if len(lines) == 1 else f"{lines[0]} …"
    return text if isinstance(error, KernelError) else f"{type(error).__name__}, {text}"


def _site(error: Exception) -> str | None:
    """The memory that held an illegal index, when the bounds check says which tensor it came from."""
    if not isinstance(error, IllegalAddress):
        return None
    tensor = str(error).partition(": index")[0]
    return next((site for word, site in _INDEX_SITES if word in tensor), None)
