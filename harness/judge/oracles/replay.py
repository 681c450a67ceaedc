"""Oracle `replay`: a graph replay gives the bits of the same eager step, and its answer changes with its inputs.

Without the second part, an engine that always gives one answer would pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from harness.core.finding_words import place
from harness.core.records import Finding
from harness.judge.oracles.compare import Mismatch, compare_bits, explanation, largest_difference
from harness.judge.run_records import Evidence, Judgement, ReplayedStep, Run
from harness.memory.poison.sentinels import hex_bits


def judge(evidence: Evidence) -> Judgement:
    """Compare every replayed step with its eager twin and with the replay before it, in every run."""
    notes: list[str] = []
    judgement = Judgement.of(_looks(evidence, notes))
    # One note stands for all steps.
    judgement.notes = notes[:1]
    return judgement


def _looks(evidence: Evidence, notes: list[str]) -> Iterator[tuple[int, Iterable[Finding]]]:
    for run in evidence.runs:
        for step in run.replays:
            comparison = compare_bits(step.replayed, step.eager, step.live)
            mismatch = comparison.mismatch
            differs = mismatch is not None and not _is_spread(step, notes)
            yield comparison.looked_at, [_unlike_eager(run, step, mismatch)] if mismatch and differs else []
        for name in dict.fromkeys(step.name for step in run.replays):
            yield 0, _unmoved(run, [step for step in run.replays if step.name == name])


def _is_spread(step: ReplayedStep, notes: list[str]) -> bool:
    """Whether a second eager run on the same memory is as far from the first as the replay is. Adds a note if so."""
    if step.eager_again is None:
        return False
    spread = largest_difference(step.eager, step.eager_again, step.live)
    note = explanation(step.name, largest_difference(step.replayed, step.eager, step.live), spread)
    notes += [note] if note else []
    return note is not None


def _unlike_eager(run: Run, step: ReplayedStep, mismatch: Mismatch) -> Finding:
    rows = mismatch.where("row")
    stale = f", and the graph read a stale {step.stale_site}" if step.stale_site else ""
    return Finding(
        oracle="replay",
        site=step.stale_site,
        tensor=step.name,
        where=f"step {step.step}" + (f", {rows}" if rows else ""),
        bits=mismatch.bits(step.replayed, step.eager, "eager "),
        message=f"the replay of {step.name} is not what the same step gives eagerly{stale}: {mismatch.message} "
        f"(pattern {run.pattern})",
    )


def _unmoved(run: Run, steps: Sequence[ReplayedStep]) -> Iterator[Finding]:
    """A finding if rows were live in several replays and gave the same bits in all of them."""
    height = max(len(step.live) for step in steps)
    seen = torch.zeros(height, dtype=torch.int64)
    moved = torch.zeros(height, dtype=torch.bool)
    latest: dict[int, torch.Tensor] = {}
    for step in steps:
        for row in step.live.nonzero().flatten().tolist():
            answer = step.replayed[row]
            moved[row] |= row in latest and _differ(answer, latest[row])
            latest[row] = answer
            seen[row] += 1
    stuck = ((seen > 1) & ~moved).nonzero().flatten().tolist()
    if not stuck:
        return
    last = steps[-1]
    row = stuck[0]
    index = (row, *(0,) * (last.replayed.ndim - 1))
    yield Finding(
        oracle="replay",
        site=next((step.stale_site for step in steps if step.stale_site), None),
        tensor=last.name,
        where=f"steps {steps[0].step}-{last.step}, {place('row', stuck)}",
        bits=hex_bits(last.replayed, index) if row < len(last.replayed) else None,
        message=f"the replayed answer of {last.name} does not move although its inputs do: the same bits in "
        f"{int(seen[row])} steps (pattern {run.pattern})",
    )


def _differ(answer: torch.Tensor, before: torch.Tensor) -> bool:
    one = torch.ones(1, dtype=torch.bool, device=answer.device)
    return compare_bits(answer[None], before[None], one).mismatch is not None
