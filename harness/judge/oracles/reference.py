"""Oracle `reference`: live rows agree with the float64 reference within the bounds of the tolerance table."""

from __future__ import annotations

from harness.core.records import Finding
from harness.judge.oracles.compare import Comparison, compare
from harness.judge.oracles.thresholds import bound
from harness.judge.run_records import Evidence, Judgement, Observed


def compared(observed: Observed) -> Comparison:
    """Compare an observed tensor with its reference, which must exist."""
    assert observed.expected is not None
    allowed = bound(observed.bound) if observed.expected.dtype.is_floating_point else None
    return compare(observed.tensor, observed.expected, observed.live, allowed)


def judge(evidence: Evidence) -> Judgement:
    """Compare every tensor that has a reference, in every run."""
    return Judgement.of(
        _look(observed, run.pattern)
        for run in evidence.runs
        for observed in run.observed
        if observed.expected is not None
    )


def _look(observed: Observed, pattern: str) -> tuple[int, list[Finding]]:
    comparison = compared(observed)
    mismatch = comparison.mismatch
    if mismatch is None:
        return comparison.looked_at, []
    finding = Finding(
        oracle="reference",
        site=observed.site,
        tensor=observed.name,
        where=mismatch.where(observed.describe, "worst"),
        bits=mismatch.bits(observed.tensor),
        message=f"{observed.name} is not what the float64 reference says: {mismatch.message} (pattern {pattern})",
    )
    return comparison.looked_at, [finding]
