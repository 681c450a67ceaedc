"""Oracle `non_interference`: live rows are bitwise equal for any content of memory that must not matter.

It detects stale or padded memory that is finite and moves live rows, which `isfinite` cannot. A row of equal elements
shows no influence, so it is a finding unless such a row is expected.

If runs differ on a device that may not repeat its bits, the main run is repeated. The difference of the two equal runs
is the spread that other runs are allowed, and the judgement has a note about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch

from harness.core.finding_words import place
from harness.core.records import Finding
from harness.judge.oracles.compare import Mismatch, blank_rows, compare_bits, explanation, largest_difference
from harness.judge.run_records import Evidence, Judgement, Observed, Run
from harness.memory.poison.sentinels import hex_bits


def judge(evidence: Evidence) -> Judgement:
    """Compare each further run with the first. With one run there is nothing to look at."""
    spreads = _Spreads(evidence)
    judgement = Judgement.of(_looks(evidence, spreads))
    judgement.notes = list(dict.fromkeys(spreads.notes))
    return judgement


def _looks(evidence: Evidence, spreads: _Spreads) -> Iterator[tuple[int, Iterable[Finding]]]:
    first, others = evidence.runs[0], evidence.runs[1:]
    if others:
        yield from ((0, _blank(observed)) for observed in first.observed)
    for other in others:
        yield from _between(first, other, spreads)


@dataclass(slots=True)
class _Spreads:
    """The spread of each tensor, measured at the first difference."""

    evidence: Evidence
    notes: list[str] = field(default_factory=list)
    _again: Run | None = None

    def explain(self, index: int, ours: Observed, theirs: Observed, live: torch.Tensor) -> bool:
        """Whether equal runs differ as much in observed tensor number `index`. Adds a note if so."""
        if self.evidence.repeat is None:
            return False
        if self._again is None:
            self._again = self.evidence.repeat()
        if index >= len(self._again.observed):
            return False
        spread = largest_difference(ours.tensor, self._again.observed[index].tensor, ours.live)
        note = explanation(ours.name, largest_difference(ours.tensor, theirs.tensor, live), spread)
        self.notes += [note] if note else []
        return note is not None


def _between(first: Run, other: Run, spreads: _Spreads) -> Iterator[tuple[int, list[Finding]]]:
    names = [[observed.name for observed in run.observed] for run in (first, other)]
    if names[0] != names[1]:
        message = f"the run took another course under pattern {other.pattern} than under {first.pattern}"
        different = [f"{a} / {b}" for a, b in zip(*names, strict=False) if a != b]
        different.append(f"{len(names[0])} / {len(names[1])}")
        yield 0, [Finding(oracle="non_interference", where=f"tensors {different[0]}", message=message)]
    for index, (ours, theirs) in enumerate(zip(first.observed, other.observed, strict=False)):
        both = ours.live & theirs.live if ours.live.shape == theirs.live.shape else ours.live
        comparison = compare_bits(theirs.tensor, ours.tensor, both)
        mismatch = comparison.mismatch
        differs = mismatch is not None and not spreads.explain(index, ours, theirs, both)
        found = [_finding(ours, theirs, mismatch, first.pattern, other.pattern)] if mismatch and differs else []
        yield comparison.looked_at, found


def _finding(ours: Observed, theirs: Observed, mismatch: Mismatch, first: str, other: str) -> Finding:
    return Finding(
        oracle="non_interference",
        site=ours.site,
        tensor=ours.name,
        where=mismatch.where(ours.describe),
        bits=mismatch.bits(ours.tensor, theirs.tensor),
        message=f"{ours.name} depends on memory that must not matter: {mismatch.message} (patterns {first} / {other})",
    )


def _blank(observed: Observed) -> Iterator[Finding]:
    rows = blank_rows(observed.tensor, observed.live, observed.expected)
    if rows:
        first = (rows[0], *(0,) * (observed.tensor.ndim - 1))
        yield Finding(
            oracle="non_interference",
            site=observed.site,
            tensor=observed.name,
            where=place(observed.describe, rows),
            bits=hex_bits(observed.tensor, first),
            message=f"live rows of {observed.name} hold one value only, which cannot show an influence",
        )
