"""Oracles of agreement: with the float64 reference, or of answers that are given twice.

`reference`: live rows agree with the reference within the bounds of the tolerance table. A change
of the caches or of the padding must not change an answer, which the others judge:

`padding` runs the same step with and without padded rows, in a batch of one size. A scale that
covers padded rows, or a plan made for them, moves live rows by little: the values stay finite, and
within most tolerances.

`cold_warm` repeats a prompt after another request has cached its prefix. That changes how attention
is computed (chunks of context, merged), never its result. It shows a unit error in a merge, or a
page that was found before it was written.

`tokens` looks at what an engine took from each row of logits: the largest one, which is the
reference's too. Where the reference's logits of two tokens lie within the bound of each other,
either may be taken.

`flush` repeats the questions after a flush of all caches. An engine that answers worse from round
to round and recovers with a flush has stale data in its caches. If it does not recover, the stale
data is elsewhere, or survives the flush.

Answers are compared up to the first decision that differs (see :mod:`harness.judge.decisions`). A
decision that rounding does not explain is a finding.
"""

from __future__ import annotations

import math

import torch

from harness.core.cause_codes import Code
from harness.core.finding_words import place
from harness.core.records import Finding
from harness.judge.decisions import Divergence
from harness.judge.oracles.compare import Comparison, Mismatch, compare, compare_bits
from harness.judge.oracles.thresholds import bound
from harness.judge.run_records import Evidence, Judgement, Observed, Pair


def compared(observed: Observed) -> Comparison:
    """Compare an observed tensor with its reference, which must exist."""
    assert observed.expected is not None
    allowed = bound(observed.bound) if observed.expected.dtype.is_floating_point else None
    return compare(observed.tensor, observed.expected, observed.live, allowed, observed.slack)


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
        tensor=observed.name,
        where=mismatch.where(observed.describe, "worst"),
        bits=mismatch.bits(observed.tensor),
        cause=Code.DIFFERS,
        excess=mismatch.finite_excess,
        message=(
            f"{observed.name} differs from the float64 reference:"
            f" {mismatch.message}{_base(observed, mismatch)} (pattern {pattern})"
        ),
    )
    return comparison.looked_at, [finding]


def _base(observed: Observed, mismatch: Mismatch) -> str:
    """A hint if each value of a log-sum-exp is the expected one times log2(e), or times ln 2; else
    empty.
    """
    if (
        mismatch.kind != "value"
        or "lse" not in observed.bound.split(".")
        or observed.expected is None
    ):
        return ""
    found, expected = observed.tensor[observed.live].double(), observed.expected[observed.live]
    # A ratio of numbers near 0 says nothing.
    telling = found.isfinite() & expected.isfinite() & (expected.abs() > 0.1)
    ratios = found[telling] / expected[telling]
    for factor, words in _BASES.items():
        if len(ratios) > 1 and bool(((ratios / factor - 1).abs() < 0.005).all()):
            return f"; each value is {factor:.4f} times the expected one, {words}"
    return ""


_BASES = {
    math.log2(math.e): "log2(e): it is in base 2, the natural logarithm is promised",
    math.log(2): "ln 2: a natural logarithm was converted as if it were in base 2",
}


def tokens(evidence: Evidence) -> Judgement:
    """Look at the token of every row of logits that says which token it gave, in every run."""
    return Judgement.of(
        _wrong_tokens(observed, run.pattern)
        for run in evidence.runs
        for observed in run.observed
        if observed.tokens is not None
    )


def _wrong_tokens(observed: Observed, pattern: str) -> tuple[int, list[Finding]]:
    """The rows with a token that is not the largest logit, or that the reference puts beyond the
    bound below it.
    """
    assert observed.tokens is not None and observed.expected is not None
    taken, want, limits = observed.tokens, observed.expected, bound(observed.bound)
    exists = (taken >= 0) & (taken < want.shape[1])
    column = torch.where(exists, taken, 0)[:, None]
    own = observed.tensor.nan_to_num(nan=torch.inf)
    largest = want.amax(dim=1)
    error = (
        limits.floor * want.square().mean(dim=1).sqrt()
        + limits.ulps * torch.finfo(limits.dtype).eps * largest.abs()
    )
    is_own = own.gather(1, column).squeeze(1) == own.amax(dim=1)
    is_right = exists & is_own & (want.gather(1, column).squeeze(1) >= largest - 2 * error)
    rows = (~is_right).nonzero().flatten().tolist()
    if not rows:
        return len(taken), []
    first = rows[0]
    best = int(own[first].argmax()), int(want[first].argmax())
    finding = Finding(
        oracle="tokens",
        tensor=observed.name,
        where=place(observed.describe, rows),
        cause=Code.WRONG_TOKEN,
        message=(
            f"{len(rows)} of {len(taken)} tokens are not the largest logit: the first is"
            f" {int(taken[first])}, where the engine's largest is of {best[0]} and the reference's"
            f" of {best[1]} (pattern {pattern})"
        ),
    )
    return len(taken), [finding]


def padding(evidence: Evidence) -> Judgement:
    """Compare each step with its twin without padding: bit by bit, or within the bound of the pair
    if it names one.
    """
    return _judge(
        evidence, "padding", "live rows of {} change when padded rows are added", "unpadded "
    )


def cold_warm(evidence: Evidence) -> Judgement:
    """Compare the answers to a prompt with a cached prefix with the answers without."""
    return _judge(
        evidence,
        "cold_warm",
        "{} is answered differently with a warm prefix cache than with a cold one",
    )


def flush(evidence: Evidence) -> Judgement:
    """Compare the answers after the flush with the answers of the first epoch."""
    return _judge(
        evidence, "flush", "{} is answered differently after a flush of the caches than at first"
    )


def repeats(evidence: Evidence) -> Judgement:
    """Compare each further launch on equal inputs with the first, bit by bit."""
    return _judge(
        evidence, "repeats", "{} differs from the first launch on equal inputs", "first launch "
    )


def _judge(evidence: Evidence, oracle: str, sentence: str, other: str = "") -> Judgement:
    """Compare the pairs of an oracle. `sentence` says what differs.

    `other` names the first of two bit patterns. Without it, the finding names the worst element of
    the pair.
    """

    def look(pair: Pair, pattern: str) -> tuple[int, list[Finding]]:
        if pair.bound:
            comparison = compare(pair.second, pair.first.double(), pair.live, bound(pair.bound))
        else:
            comparison = compare_bits(pair.second, pair.first, pair.live)
        mismatch, divergence = comparison.mismatch, pair.divergence
        found = [differing(pair, mismatch, pattern)] if mismatch else []
        if divergence is None:
            return comparison.looked_at, found
        if divergence.is_beyond_rounding:
            found.append(divergence_finding(oracle, pair.name, pair.describe, divergence, pattern))
        else:
            notes.append(f"{pair.name}: {divergence}; compared up to there")
        return comparison.looked_at + divergence.num_compared, found

    def differing(pair: Pair, mismatch: Mismatch, pattern: str) -> Finding:
        return Finding(
            oracle=oracle,
            tensor=pair.name,
            where=mismatch.where(pair.describe, "first" if other else "worst"),
            bits=(
                mismatch.bits(pair.second, pair.first, other)
                if other
                else mismatch.bits(pair.second)
            ),
            cause=Code.DIFFERS,
            excess=None if other else mismatch.finite_excess,
            message=f"{sentence.format(pair.name)}: {mismatch.message} (pattern {pattern})",
        )

    notes: list[str] = []
    judged = (
        look(pair, run.pattern)
        for run in evidence.runs
        for pair in run.pairs
        if pair.oracle == oracle
    )
    judgement = Judgement.of(judged)
    judgement.notes = notes[:1]
    return judgement


def divergence_finding(
    oracle: str, name: str, describe: str, divergence: Divergence, pattern: str
) -> Finding:
    """The finding of a decision that differs between two runs, although rounding does not explain
    it.
    """
    return Finding(
        oracle=oracle,
        tensor=name,
        where=f"{describe} {divergence.row}",
        cause=Code.DIVERGED,
        message=(
            f"{name} is decided differently, and rounding does not explain it: {divergence}"
            f" (pattern {pattern})"
        ),
    )
