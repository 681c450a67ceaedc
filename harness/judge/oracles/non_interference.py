"""Oracle `non_interference`: live rows are bitwise equal whatever stands in memory that must not matter.

It sees what `isfinite` cannot: stale or padded memory that is finite and moves live rows. Nothing can be
learned from a row in which all elements are alike, so such a row is a finding where another is expected.

Where runs differ and the device may not repeat its bits, the main run is made a second time: what two equal runs differ
by is the spread within which two unequal ones are then compared, and the judgement says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from harness.core.finding_words import merged, place
from harness.core.records import Finding
from harness.judge.oracles.compare import Mismatch, blank_rows, compare_bits
from harness.judge.oracles.spread import is_within, largest_difference, stated
from harness.judge.run_records import Evidence, Judgement, Observed, Run
from harness.memory.poison.sentinels import hex_bits


def judge(evidence: Evidence) -> Judgement:
    """Compare each further run with the first. One run alone shows nothing: nothing is looked at."""
    judgement = Judgement()
    findings: list[Finding] = []
    if len(evidence.runs) > 1:
        findings.extend(blank for observed in evidence.runs[0].observed for blank in _blank(observed))
    spreads = _Spreads(evidence)
    for other in evidence.runs[1:]:
        looked_at, found = _between(evidence.runs[0], other, spreads)
        judgement.looked_at += looked_at
        findings.extend(found)
    judgement.findings = merged(findings)
    judgement.notes = list(dict.fromkeys(spreads.notes))
    return judgement


@dataclass(slots=True)
class _Spreads:
    """What two equal runs differ by, tensor by tensor; measured when it is first asked for."""

    evidence: Evidence
    notes: list[str] = field(default_factory=list)
    _again: Run | None = None

    def explain(self, index: int, ours: Observed, theirs: Observed, live: torch.Tensor) -> bool:
        """Whether the difference of observed tensor number `index` is one that equal runs have too."""
        if self.evidence.repeat is None:
            return False
        if self._again is None:
            self._again = self.evidence.repeat()
        if index >= len(self._again.observed):
            return False
        spread = largest_difference(ours.tensor, self._again.observed[index].tensor, ours.live)
        difference = largest_difference(ours.tensor, theirs.tensor, live)
        if not is_within(difference, spread):
            return False
        self.notes.append(stated(ours.name, difference, spread))
        return True


def _between(first: Run, other: Run, spreads: _Spreads) -> tuple[int, list[Finding]]:
    looked_at = 0
    findings: list[Finding] = []
    names = [[observed.name for observed in run.observed] for run in (first, other)]
    if names[0] != names[1]:
        message = f"the run took another course under pattern {other.pattern} than under {first.pattern}"
        different = [f"{a} / {b}" for a, b in zip(*names, strict=False) if a != b] or [
            f"{len(names[0])} / {len(names[1])}"
        ]
        findings.append(Finding(oracle="non_interference", where=f"tensors {different[0]}", message=message))
    for index, (ours, theirs) in enumerate(zip(first.observed, other.observed, strict=False)):
        both = ours.live & theirs.live if ours.live.shape == theirs.live.shape else ours.live
        comparison = compare_bits(theirs.tensor, ours.tensor, both)
        looked_at += comparison.looked_at
        if comparison.mismatch is not None and not spreads.explain(index, ours, theirs, both):
            findings.append(_finding(ours, theirs, comparison.mismatch, first.pattern, other.pattern))
    return looked_at, findings


def _finding(ours: Observed, theirs: Observed, mismatch: Mismatch, first: str, other: str) -> Finding:
    bits = None
    if mismatch.index:
        bits = f"{hex_bits(ours.tensor, mismatch.index)} / {hex_bits(theirs.tensor, mismatch.index)}"
    return Finding(
        oracle="non_interference",
        site=ours.site,
        tensor=ours.name,
        where=place(ours.describe, mismatch.rows, mismatch.index) if mismatch.rows else "",
        bits=bits,
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
