"""Oracle `padding`: what a request of a captured batch is answered does not depend on how many rows are padding.

The same step is run with no padding and with some, in a batch of one size, so that all bits must agree. A scale that
covers padded rows, or a plan cut for them, moves live rows by little: it is finite, and within most tolerances.
"""

from __future__ import annotations

from harness.core.finding_words import merged, place
from harness.core.records import Finding
from harness.judge.oracles.compare import Comparison, compare, compare_bits
from harness.judge.oracles.thresholds import bound
from harness.judge.run_records import Evidence, Judgement, Pair
from harness.memory.poison.sentinels import hex_bits


def judge(evidence: Evidence) -> Judgement:
    """Compare the two answers of every step that was run with other padding, in every run.

    Bit by bit, or within the bound that a pair names: that of a device which may not repeat its bits.
    """
    judgement = Judgement()
    findings: list[Finding] = []
    for run in evidence.runs:
        for pair in (pair for pair in run.pairs if pair.oracle == "padding"):
            comparison = _compare(pair)
            judgement.looked_at += comparison.looked_at
            if comparison.mismatch is None:
                continue
            mismatch = comparison.mismatch
            bits = None
            if mismatch.index:
                bits = f"{hex_bits(pair.second, mismatch.index)} / unpadded {hex_bits(pair.first, mismatch.index)}"
            findings.append(
                Finding(
                    oracle="padding",
                    tensor=pair.name,
                    where=place(pair.describe, mismatch.rows, mismatch.index) if mismatch.rows else "",
                    bits=bits,
                    message=f"live rows of {pair.name} are not what they are without padded rows: {mismatch.message} "
                    f"(pattern {run.pattern})",
                )
            )
    judgement.findings = merged(findings)
    return judgement


def _compare(pair: Pair) -> Comparison:
    if not pair.bound:
        return compare_bits(pair.second, pair.first, pair.live)
    return compare(pair.second, pair.first.double(), pair.live, bound(pair.bound))
