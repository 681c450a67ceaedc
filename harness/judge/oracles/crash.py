"""Oracle `crash`: every run came to its end. The runner reports deaths and hangs of the whole process."""

from __future__ import annotations

from harness.core.errors import CaptureError, IllegalAddress, KernelError
from harness.core.finding_words import merged
from harness.core.records import Finding
from harness.judge.run_records import Evidence, Judgement

CRASHES: tuple[type[Exception], ...] = (IllegalAddress, KernelError, CaptureError)
"""Exceptions of the system under test; any other one is an error of the harness."""

_INDEX_SITES = (
    ("metadata", "sched_meta"),
    ("block_table column", "sched_meta"),
    ("block_table", "block_table.pad"),
    ("expert", "router.ids"),
)
"""The name of an indexed tensor in a bounds check -> the site of the index."""


def judge(evidence: Evidence) -> Judgement:
    """One finding for each run that an exception ended."""
    findings = [
        Finding(
            oracle="crash",
            site=_site(run.error),
            message=f"{_sentence(run.error)} (pattern {run.pattern})",
            at=getattr(run.error, "at", ""),
        )
        for run in evidence.runs
        if run.error is not None
    ]
    return Judgement(merged(findings), looked_at=len(evidence.runs))


def _sentence(error: Exception) -> str:
    lines = str(error).strip().splitlines() or ["no message"]
    text = lines[0] if len(lines) == 1 else f"{lines[0]} …"
    return text if isinstance(error, KernelError) else f"{type(error).__name__}, {text}"


def _site(error: Exception) -> str | None:
    """The site of an illegal index, if the bounds check names the tensor."""
    if not isinstance(error, IllegalAddress):
        return None
    tensor = str(error).partition(": index")[0]
    return next((site for word, site in _INDEX_SITES if word in tensor), None)
