"""What oracles `cold_warm` and `flush` have in common: the same answers twice, from two conditions of the caches."""

from __future__ import annotations

import torch

from harness.core.finding_words import merged, place
from harness.core.records import Finding
from harness.judge.oracles.compare import compare
from harness.judge.oracles.thresholds import bound
from harness.judge.run_records import Evidence, Judgement, Pair
from harness.memory.poison.sentinels import hex_bits


def judge_pairs(evidence: Evidence, oracle: str, sentence: str) -> Judgement:
    """Compare every pair that is `oracle`'s, in every run, within the bound of the tolerance table.

    `sentence` says what the later answers are, when they differ.
    """
    judgement = Judgement()
    findings: list[Finding] = []
    for run in evidence.runs:
        for pair in run.pairs:
            if pair.oracle != oracle:
                continue
            comparison = compare(pair.second, pair.first.to(torch.float64), pair.live, bound(pair.bound))
            judgement.looked_at += comparison.looked_at
            mismatch = comparison.mismatch
            if mismatch is not None:
                findings.append(_finding(pair, oracle, f"{sentence}: {mismatch.message} (pattern {run.pattern})",
                                         mismatch.rows, mismatch.index))  # fmt: skip
    judgement.findings = merged(findings)
    return judgement


def _finding(pair: Pair, oracle: str, message: str, rows: tuple[int, ...], index: tuple[int, ...]) -> Finding:
    return Finding(
        oracle=oracle,
        tensor=pair.name,
        where=place(pair.describe, rows, index, "worst") if rows else "",
        bits=hex_bits(pair.second, index) if index else None,
        message=f"{pair.name} {message}",
    )
