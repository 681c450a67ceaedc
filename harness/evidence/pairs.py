"""Answers that are given twice, from two conditions of the caches or of the padding, which must not
change them.

`padding` runs the same step with and without padded rows, in a batch of one size. A scale that
covers padded rows, or a plan made for them, moves live rows by little: the values stay finite, and
within most tolerances.

`cold_warm` repeats a prompt after another request has cached its prefix. That changes how attention
is computed (chunks of context, merged), never its result. It shows a unit error in a merge, or a
page that was found before it was written.

`flush` repeats the questions after a flush of all caches. An engine that answers worse from round
to round and recovers with a flush has stale data in its caches. If it does not recover, the stale
data is elsewhere, or survives the flush.

`repeats` launches a kernel again on equal inputs.

Answers are compared up to the first decision that differs (see :mod:`harness.evidence.decisions`).
A decision that rounding does not explain is a finding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.core.cause_codes import Code
from harness.core.findings import Finding
from harness.core.oracles import OracleSpec
from harness.evidence.records import Evidence, Judgement

if TYPE_CHECKING:
    import torch

    from harness.evidence.compare import Mismatch
    from harness.evidence.decisions import Divergence


@dataclass(slots=True)
class Pair:
    """The same answers twice, from two conditions of the caches; `oracle` names the oracle that
    judges them.

    No live row depends on the decision of the `divergence`, if there is one.
    """

    oracle: str
    name: str
    first: torch.Tensor
    second: torch.Tensor
    live: torch.Tensor
    bound: str
    describe: str = "row"
    divergence: Divergence | None = None


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
    # Both load torch, which lists and help must not wait for.
    from harness.evidence.compare import compare, compare_bits
    from harness.evidence.thresholds import bound

    def look(pair: Pair, pattern: str) -> tuple[int, list[Finding]]:
        # Without a bound both sides do the same work, and must give the same bits.
        if pair.bound:
            comparison = compare(pair.second, pair.first.double(), pair.live, bound(pair.bound))
        else:
            comparison = compare_bits(pair.second, pair.first, pair.live)
        mismatch = comparison.mismatch
        divergence = pair.divergence
        found = [differing(pair, mismatch, pattern)] if mismatch else []
        if divergence is None:
            return comparison.looked_at, found
        if divergence.is_beyond_rounding:
            # A near tie may be decided either way. Any other decision is an error, even where all
            # values that were compared agree.
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
    judgement = Judgement.of(
        look(pair, pattern) for pair, pattern in evidence.all(Pair) if pair.oracle == oracle
    )
    # One example is enough: a drift of decisions has a note for each pair.
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


ORACLES = (
    OracleSpec(
        "padding",
        "live rows of a captured batch are bitwise equal for any number of padded rows",
        padding,
        needs="batches",
        rank=150,
    ),
    OracleSpec(
        "cold_warm",
        "a prompt is answered alike whether its prefix was cached or not",
        cold_warm,
        needs="warm",
        rank=410,
        by_default=True,
    ),
    OracleSpec(
        "flush",
        "after a flush of all caches the answers are as they were at first",
        flush,
        needs="flush",
        rank=420,
        by_default=True,
    ),
    OracleSpec(
        "repeats",
        "each launch on equal inputs gives the same bits",
        repeats,
        needs="repeats",
        rank=430,
    ),
)
