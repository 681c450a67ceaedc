"""Oracles of agreement: with the float64 reference, or of answers that are given twice.

`reference`: live rows agree with the reference within the bounds of the tolerance table. A change of the caches or of
the padding must not change an answer, which the others judge:

`padding` runs the same step with and without padded rows, in a batch of one size. A scale that covers padded rows, or a
plan made for them, moves live rows by little: the values stay finite, and within most tolerances.

`cold_warm` repeats a prompt after another request has cached its prefix. That changes how attention is computed (chunks
of context, merged), never its result. It shows a unit error in a merge, or a page that was found before it was written.

`flush` repeats the questions after a flush of all caches. An engine that answers worse from round to round and recovers
with a flush has stale data in its caches. If it does not recover, the stale data is elsewhere, or survives the flush.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.core.records import Finding
from harness.judge.oracles.compare import Comparison, Mismatch, compare, compare_bits
from harness.judge.oracles.thresholds import bound
from harness.judge.run_records import Evidence, Judgement, Observed, Pair


def compared(observed: Observed) -> Comparison:
    """Compare an observed tensor with its reference, which must exist."""
    assert observed.expected is not None
    allowed = bound(observed.bound) if observed.expected.dtype.is_floating_point else None
    return compare(observed.tensor, observed.expected, observed.live, allowed)


def reference(evidence: Evidence) -> Judgement:
    """Compare every tensor that has a reference, in every run."""
    return Judgement.of(
        _against_reference(observed, run.pattern)
        for run in evidence.runs
        for observed in run.observed
        if observed.expected is not None
    )


def _against_reference(observed: Observed, pattern: str) -> tuple[int, list[Finding]]:
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
        message=f"{observed.name} differs from the float64 reference: {mismatch.message} (pattern {pattern})",
    )
    return comparison.looked_at, [finding]


def padding(evidence: Evidence) -> Judgement:
    """Compare each step with its twin without padding: bit by bit, or within the bound of the pair if it names one."""
    return _judge(evidence, "padding", _padding_finding)


def cold_warm(evidence: Evidence) -> Judgement:
    """Compare the answers to a prompt with a cached prefix with the answers without."""
    sentence = "is answered differently with a warm prefix cache than with a cold one"
    return _judge(evidence, "cold_warm", lambda *found: _cache_finding(sentence, *found))


def flush(evidence: Evidence) -> Judgement:
    """Compare the answers after the flush with the answers of the first epoch."""
    sentence = "is answered differently after a flush of the caches than at first"
    return _judge(evidence, "flush", lambda *found: _cache_finding(sentence, *found))


def repeats(evidence: Evidence) -> Judgement:
    """Compare each further launch on equal inputs with the first, bit by bit."""
    return _judge(evidence, "repeats", _repeat_finding)


def _judge(evidence: Evidence, oracle: str, finding_of: Callable[[Pair, Mismatch, str], Finding]) -> Judgement:
    def look(pair: Pair, pattern: str) -> tuple[int, list[Finding]]:
        if pair.bound:
            comparison = compare(pair.second, pair.first.double(), pair.live, bound(pair.bound))
        else:
            comparison = compare_bits(pair.second, pair.first, pair.live)
        mismatch = comparison.mismatch
        return comparison.looked_at, [finding_of(pair, mismatch, pattern)] if mismatch else []

    return Judgement.of(look(pair, run.pattern) for run in evidence.runs for pair in run.pairs if pair.oracle == oracle)


def _repeat_finding(pair: Pair, mismatch: Mismatch, pattern: str) -> Finding:
    return Finding(
        oracle=pair.oracle,
        tensor=pair.name,
        where=mismatch.where(pair.describe),
        bits=mismatch.bits(pair.second, pair.first, "first launch "),
        message=f"{pair.name} differs from the first launch on equal inputs: {mismatch.message} (pattern {pattern})",
    )


def _padding_finding(pair: Pair, mismatch: Mismatch, pattern: str) -> Finding:
    return Finding(
        oracle=pair.oracle,
        tensor=pair.name,
        where=mismatch.where(pair.describe),
        bits=mismatch.bits(pair.second, pair.first, "unpadded "),
        message=f"live rows of {pair.name} change when padded rows are added: {mismatch.message} (pattern {pattern})",
    )


def _cache_finding(sentence: str, pair: Pair, mismatch: Mismatch, pattern: str) -> Finding:
    return Finding(
        oracle=pair.oracle,
        tensor=pair.name,
        where=mismatch.where(pair.describe, "worst"),
        bits=mismatch.bits(pair.second),
        message=f"{pair.name} {sentence}: {mismatch.message} (pattern {pattern})",
    )
