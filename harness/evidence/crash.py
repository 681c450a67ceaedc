"""Oracle `crash`: every run came to its end.

The runner reports deaths and hangs of the whole process.
"""

from __future__ import annotations

from harness.core.errors import KernelError, SystemUnderTestError, message_of
from harness.core.finding_words import merged
from harness.core.findings import Finding
from harness.core.oracles import OracleSpec
from harness.evidence.records import Evidence, Judgement


def crash(evidence: Evidence) -> Judgement:
    """One finding for each run that an exception ended."""
    findings = [
        Finding(
            oracle="crash",
            site=_site_of_index(run.error.error),
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


def _site_of_index(name: str) -> str | None:
    """The memory that an index was read from, by the name that a bounds check gives the index."""
    from harness.core.catalog import SITES

    return next((site.name for site in SITES if name in site.indices), None)


def _sentence(error: SystemUnderTestError) -> str:
    # The message of a KernelError was cut where it was made.
    words = str(error) if isinstance(error, KernelError) else message_of(error)
    lines = words.strip().splitlines() or ["no message"]
    text = lines[0] if len(lines) == 1 else f"{lines[0]} …"
    return text if isinstance(error, KernelError) else f"{type(error).__name__}, {text}"


ORACLES = (
    OracleSpec(
        "crash",
        "the worker survives: no illegal address, no signal, no exception, no hang",
        crash,
        rank=10,
    ),
)
