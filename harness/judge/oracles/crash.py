"""Oracle `crash`: every run came to its end.

The runner reports deaths and hangs of the whole process.
"""

from __future__ import annotations

from harness.core.catalog import SITES
from harness.core.errors import KernelError, SystemUnderTestError, message_of
from harness.core.finding_words import merged
from harness.core.records import Finding
from harness.judge.run_records import Evidence, Judgement

SITE_OF_INDEX = {index: site.name for site in SITES for index in site.indices}
"""The name that a bounds check gives an index -> the memory that the index was read from."""


def judge(evidence: Evidence) -> Judgement:
    """One finding for each run that an exception ended."""
    findings = [
        Finding(
            oracle="crash",
            site=SITE_OF_INDEX.get(run.error.error),
            message=f"{_sentence(run.error)} (pattern {run.pattern})",
            cause=run.error.cause,
            error=run.error.error,
            kernel=run.error.kernel,
            at=run.error.at,
        )
        for run in evidence.runs
        if run.error is not None
    ]
    return Judgement(merged(findings), looked_at=len(evidence.runs))


def _sentence(error: SystemUnderTestError) -> str:
    # The message of a KernelError was cut where it was made.
    words = str(error) if isinstance(error, KernelError) else message_of(error)
    lines = words.strip().splitlines() or ["no message"]
    text = lines[0] if len(lines) == 1 else f"{lines[0]} …"
    return text if isinstance(error, KernelError) else f"{type(error).__name__}, {text}"
