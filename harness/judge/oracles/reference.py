"""Oracle `reference`: live rows agree with the float64 reference within the bounds of the tolerance table."""

from __future__ import annotations

from collections.abc import Iterator

from harness.core.finding_words import merged, place
from harness.core.records import Finding
from harness.judge.oracles.compare import Comparison, Mismatch, compare
from harness.judge.oracles.thresholds import bound
from harness.judge.run_records import Evidence, Judgement, Observed
from harness.memory.poison.sentinels import hex_bits


def compared(observed: Observed) -> Comparison:
    """Compare one observed tensor with its reference. It must have one."""
    assert observed.expected is not None
    allowed = bound(observed.bound) if observed.expected.dtype.is_floating_point else None
    return compare(observed.tensor, observed.expected, observed.live, allowed)


def judge(evidence: Evidence) -> Judgement:
    """Compare every tensor that has a reference, in every run."""
    judgement = Judgement()
    findings: list[Finding] = []
    for run in evidence.runs:
        for observed in run.observed:
            if observed.expected is None:
                continue
            comparison = compared(observed)
            judgement.looked_at += comparison.looked_at
            if comparison.mismatch is not None:
                findings.extend(_finding(observed, comparison.mismatch, run.pattern))
    judgement.findings = merged(findings)
    return judgement


def _finding(observed: Observed, mismatch: Mismatch, pattern: str) -> Iterator[Finding]:
    yield Finding(
        oracle="reference",
        site=observed.site,
        tensor=observed.name,
        where=place(observed.describe, mismatch.rows, mismatch.index, "worst") if mismatch.rows else "",
        bits=hex_bits(observed.tensor, mismatch.index) if mismatch.index else None,
        message=f"{observed.name} is not what the float64 reference says: {mismatch.message} (pattern {pattern})",
    )
