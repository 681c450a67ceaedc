"""Oracle `non_interference`: live rows are bitwise equal for any content of memory that must not
matter.

It detects stale or padded memory that is finite and moves live rows, which `isfinite` cannot. A row
of equal elements shows no influence, so it is a finding unless such a row is expected. If runs
differ on a device that may not repeat its bits, the main run is repeated. The difference of the two
equal runs is the spread that other runs are allowed, and the judgement has a note about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.core.cause_codes import Code
from harness.core.finding_words import place
from harness.core.findings import Finding
from harness.core.oracles import BETWEEN_PATTERNS, OracleSpec
from harness.evidence.observed import Observed
from harness.evidence.pairs import divergence_finding
from harness.evidence.records import Evidence, Judgement, Run

if TYPE_CHECKING:
    import torch

    from harness.evidence.compare import Mismatch
    from harness.evidence.decisions import Divergence


def non_interference(evidence: Evidence) -> Judgement:
    """Compare each further run with the first. With one run there is nothing to look at."""
    spreads = _Spreads(evidence)
    judgement = Judgement.of(_between_runs(evidence, spreads))
    judgement.notes = list(dict.fromkeys(spreads.notes))
    return judgement


def _between_runs(evidence: Evidence, spreads: _Spreads) -> Iterator[tuple[int, Iterable[Finding]]]:
    first = evidence.runs[0]
    others = evidence.runs[1:]
    if others:
        yield from ((0, _blank(observed)) for observed in first.all(Observed))
    for other in others:
        yield from _between(first, other, spreads)


@dataclass(slots=True)
class _Spreads:
    """The spread of each tensor, measured at the first difference."""

    evidence: Evidence
    notes: list[str] = field(default_factory=list)
    _again: list[Observed] | None = None

    def explain(self, index: int, ours: Observed, theirs: Observed, live: torch.Tensor) -> bool:
        """Whether equal runs differ as much in live rows [n] bool of observed tensor `index`.

        Adds a note if so.
        """
        from harness.evidence.compare import explanation, largest_difference

        if self.evidence.repeat is None:
            return False
        # Measured at the first difference only: most cases have none, and a repeat costs a run.
        if self._again is None:
            self._again = self.evidence.repeat().all(Observed)
        if index >= len(self._again):
            return False
        again = self._again[index]
        spread = largest_difference(
            ours.tensor, again.tensor, ours.live & _before_divergence(ours, again)[0]
        )
        note = explanation(ours.name, largest_difference(ours.tensor, theirs.tensor, live), spread)
        self.notes += [note] if note else []
        return note is not None


def _between(first: Run, other: Run, spreads: _Spreads) -> Iterator[tuple[int, list[Finding]]]:
    from harness.evidence.compare import compare_bits

    firsts = first.all(Observed)
    others = other.all(Observed)
    names = [[observed.name for observed in every] for every in (firsts, others)]
    # Another number of steps or requests means that poison decided something before any value was
    # compared.
    if names[0] != names[1]:
        message = (
            f"the run took another course under pattern {other.pattern} than under {first.pattern}"
        )
        different = [f"{a} / {b}" for a, b in zip(*names, strict=False) if a != b]
        different.append(f"{len(names[0])} / {len(names[1])}")
        where = f"tensors {different[0]}"
        yield (
            0,
            [
                Finding(
                    oracle="non_interference", where=where, message=message, cause=Code.OTHER_COURSE
                )
            ],
        )
    # After another course, what both runs have is still compared: it may show where they part.
    for index, (ours, theirs) in enumerate(zip(firsts, others, strict=False)):
        # Only rows that are live in both runs can be compared.
        both = ours.live & theirs.live if ours.live.shape == theirs.live.shape else ours.live
        if spreads.evidence.repeat is not None:
            # A device that does not repeat its bits may decide a near tie differently.
            rows, divergences = _before_divergence(ours, theirs)
            both = both & rows
            beyond = [divergence for divergence in divergences if divergence.is_beyond_rounding]
            found = [
                divergence_finding("non_interference", ours.name, "row", one, other.pattern)
                for one in beyond
            ]
            yield sum(divergence.num_compared for divergence in divergences), found
            if divergences and not beyond:
                spreads.notes.append(f"{ours.name}: {divergences[0]}; compared up to there")
        comparison = compare_bits(theirs.tensor, ours.tensor, both)
        mismatch = comparison.mismatch
        differs = mismatch is not None and not spreads.explain(index, ours, theirs, both)
        found = (
            [_influenced(ours, theirs, mismatch, first.pattern, other.pattern)]
            if mismatch and differs
            else []
        )
        yield comparison.looked_at, found


def _before_divergence(ours: Observed, theirs: Observed) -> tuple[torch.Tensor, list[Divergence]]:
    """The rows [n] bool that no differing decision reaches, and the divergences.

    All rows without decisions.
    """
    import torch

    from harness.evidence.decisions import rows_before_divergence

    if len(ours.decisions) != len(theirs.decisions) or not ours.decisions:
        return torch.ones_like(ours.live), []
    return rows_before_divergence(ours.decisions, theirs.decisions)


def _influenced(
    ours: Observed, theirs: Observed, mismatch: Mismatch, first: str, other: str
) -> Finding:
    return Finding(
        oracle="non_interference",
        tensor=ours.name,
        where=mismatch.where(ours.describe),
        bits=mismatch.bits(ours.tensor, theirs.tensor),
        cause=Code.DIFFERS,
        message=(
            f"{ours.name} depends on memory that must not matter: {mismatch.message} (patterns"
            f" {first} / {other})"
        ),
    )


def _blank(observed: Observed) -> Iterator[Finding]:
    from torch_poison.patterns import hex_bits

    from harness.evidence.compare import blank_rows

    rows = blank_rows(observed.tensor, observed.live, observed.expected)
    if rows:
        first = (rows[0], *(0,) * (observed.tensor.ndim - 1))
        yield Finding(
            oracle="non_interference",
            tensor=observed.name,
            where=place(observed.describe, rows),
            bits=hex_bits(observed.tensor, first),
            cause=Code.ONE_VALUE,
            message=(
                f"live rows of {observed.name} have equal elements, so comparing them proves"
                " nothing"
            ),
        )


ORACLES = (
    OracleSpec(
        "non_interference",
        "live rows are bitwise equal under two different poisons",
        non_interference,
        needs=BETWEEN_PATTERNS,
        rank=440,
        by_default=True,
    ),
)
