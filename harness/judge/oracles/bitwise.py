"""Oracles of equal bits.

`non_interference`: live rows are bitwise equal for any content of memory that must not matter. It
detects stale or padded memory that is finite and moves live rows, which `isfinite` cannot. A row of
equal elements shows no influence, so it is a finding unless such a row is expected. If runs differ
on a device that may not repeat its bits, the main run is repeated. The difference of the two equal
runs is the spread that other runs are allowed, and the judgement has a note about it.

`replay`: a graph replay gives the bits of the same eager step, and its answer changes with its
inputs. Without the second part, an engine that always gives one answer would pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch_poison.patterns import hex_bits

from harness.core.cause_codes import Code
from harness.core.finding_words import place
from harness.core.records import Finding
from harness.judge.decisions import Divergence, rows_before_divergence
from harness.judge.oracles.agreement import divergence_finding
from harness.judge.oracles.compare import (
    Mismatch,
    blank_rows,
    compare_bits,
    explanation,
    largest_difference,
)
from harness.judge.run_records import Evidence, Judgement, Observed, ReplayedStep, Run


def non_interference(evidence: Evidence) -> Judgement:
    """Compare each further run with the first. With one run there is nothing to look at."""
    spreads = _Spreads(evidence)
    judgement = Judgement.of(_between_runs(evidence, spreads))
    judgement.notes = list(dict.fromkeys(spreads.notes))
    return judgement


def _between_runs(evidence: Evidence, spreads: _Spreads) -> Iterator[tuple[int, Iterable[Finding]]]:
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
        """Whether equal runs differ as much in live rows [n] bool of observed tensor `index`.

        Adds a note if so.
        """
        if self.evidence.repeat is None:
            return False
        if self._again is None:
            self._again = self.evidence.repeat()
        if index >= len(self._again.observed):
            return False
        again = self._again.observed[index]
        spread = largest_difference(
            ours.tensor, again.tensor, ours.live & _before_divergence(ours, again)[0]
        )
        note = explanation(ours.name, largest_difference(ours.tensor, theirs.tensor, live), spread)
        self.notes += [note] if note else []
        return note is not None


def _between(first: Run, other: Run, spreads: _Spreads) -> Iterator[tuple[int, list[Finding]]]:
    names = [[observed.name for observed in run.observed] for run in (first, other)]
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
    for index, (ours, theirs) in enumerate(zip(first.observed, other.observed, strict=False)):
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


def replay(evidence: Evidence) -> Judgement:
    """Compare every replayed step with its eager twin and with the replay before it, in every
    run.
    """
    notes: list[str] = []
    judgement = Judgement.of(_of_replays(evidence, notes))
    # One note stands for all steps.
    judgement.notes = notes[:1]
    return judgement


def _of_replays(evidence: Evidence, notes: list[str]) -> Iterator[tuple[int, Iterable[Finding]]]:
    for run in evidence.runs:
        for step in run.replays:
            comparison = compare_bits(step.replayed, step.eager, step.live)
            mismatch = comparison.mismatch
            differs = mismatch is not None and not _is_spread(step, notes)
            yield (
                comparison.looked_at,
                [_unlike_eager(run, step, mismatch)] if mismatch and differs else [],
            )
        for name in dict.fromkeys(step.name for step in run.replays):
            yield 0, _unmoved(run, [step for step in run.replays if step.name == name])


def _is_spread(step: ReplayedStep, notes: list[str]) -> bool:
    """Whether a second eager run on the same memory is as far from the first as the replay is.

    Adds a note if so.
    """
    if step.eager_again is None:
        return False
    spread = largest_difference(step.eager, step.eager_again, step.live)
    note = explanation(step.name, largest_difference(step.replayed, step.eager, step.live), spread)
    notes += [note] if note else []
    return note is not None


def _unlike_eager(run: Run, step: ReplayedStep, mismatch: Mismatch) -> Finding:
    rows = mismatch.where("row")
    stale = f", and the graph read a stale {step.stale_site}" if step.stale_site else ""
    stale += f" ({step.stale})" if step.stale else ""
    return Finding(
        oracle="replay",
        site=step.stale_site,
        tensor=step.name,
        where=f"step {step.step}" + (f", {rows}" if rows else ""),
        bits=mismatch.bits(step.replayed, step.eager, "eager "),
        cause=Code.DIFFERS,
        message=(
            f"the replay of {step.name} differs from the same step run eagerly{stale}:"
            f" {mismatch.message} (pattern {run.pattern})"
        ),
    )


def _unmoved(run: Run, steps: Sequence[ReplayedStep]) -> Iterator[Finding]:
    """A finding if rows were live in several replays, of other inputs, and gave the same bits in
    all of them.
    """
    height = max(len(step.live) for step in steps)
    seen = torch.zeros(height, dtype=torch.int64)
    moved = torch.zeros(height, dtype=torch.bool)
    latest: dict[int, torch.Tensor] = {}
    given: dict[int, int] = {}
    for step in steps:
        for row in step.live.nonzero().flatten().tolist():
            answer, inputs = step.replayed[row], step.inputs[row] if step.inputs else None
            # Two requests with one prompt give the same answers, one behind the other.
            is_repeated = inputs is not None and given.get(row) == inputs
            moved[row] |= row in latest and _differ(answer, latest[row])
            latest[row] = answer
            given |= {} if inputs is None else {row: inputs}
            seen[row] += not is_repeated
    stuck = ((seen > 1) & ~moved).nonzero().flatten().tolist()
    if not stuck:
        return
    last, row = steps[-1], stuck[0]
    index = (row, *(0,) * (last.replayed.ndim - 1))
    yield Finding(
        oracle="replay",
        site=next((step.stale_site for step in steps if step.stale_site), None),
        tensor=last.name,
        where=f"steps {steps[0].step}-{last.step}, {place('row', stuck)}",
        bits=hex_bits(last.replayed, index) if row < len(last.replayed) else None,
        cause=Code.UNMOVED,
        message=(
            f"the replay of {last.name} gives the same bits in {int(seen[row])} steps although its"
            f" inputs change (pattern {run.pattern})"
        ),
    )


def _differ(answer: torch.Tensor, before: torch.Tensor) -> bool:
    one = torch.ones(1, dtype=torch.bool, device=answer.device)
    return compare_bits(answer[None], before[None], one).mismatch is not None
