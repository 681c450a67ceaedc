"""Oracle `replay`: a graph replay gives the bits of the same step run eagerly, and its answer moves.

The second half proves the probe alive: an engine that gives one answer forever is equal to itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from harness.core.finding_words import merged, place
from harness.core.records import Finding
from harness.judge.oracles.compare import compare_bits
from harness.judge.oracles.spread import is_within, largest_difference, stated
from harness.judge.run_records import Evidence, Judgement, ReplayedStep, Run
from harness.memory.poison.sentinels import hex_bits


def judge(evidence: Evidence) -> Judgement:
    """Compare every replayed step with its eager twin and with the replay before it, in every run."""
    judgement = Judgement()
    findings: list[Finding] = []
    for run in evidence.runs:
        for step in run.replays:
            comparison = compare_bits(step.replayed, step.eager, step.live)
            judgement.looked_at += comparison.looked_at
            if comparison.mismatch is not None and not _is_spread(step, judgement.notes):
                mismatch = comparison.mismatch
                findings.append(_unlike_eager(run, step, mismatch.rows, mismatch.index, mismatch.message))
        for name in dict.fromkeys(step.name for step in run.replays):
            findings.extend(_unmoved(run, [step for step in run.replays if step.name == name]))
    judgement.findings = merged(findings)
    return judgement


def _is_spread(step: ReplayedStep, notes: list[str]) -> bool:
    """Whether the replay is as far from the eager step as that is from itself, run twice on the same memory."""
    if step.eager_again is None:
        return False
    spread = largest_difference(step.eager, step.eager_again, step.live)
    difference = largest_difference(step.replayed, step.eager, step.live)
    if not is_within(difference, spread):
        return False
    if not notes:
        notes.append(stated(step.name, difference, spread))
    return True


def _unlike_eager(
    run: Run, step: ReplayedStep, rows: tuple[int, ...], index: tuple[int, ...], difference: str
) -> Finding:
    bits = f"{hex_bits(step.replayed, index)} / eager {hex_bits(step.eager, index)}" if index else None
    stale = f", and the graph read a stale {step.stale_site}" if step.stale_site else ""
    return Finding(
        oracle="replay",
        site=step.stale_site,
        tensor=step.name,
        where=f"step {step.step}" + (f", {place('row', rows, index)}" if rows else ""),
        bits=bits,
        message=f"the replay of {step.name} is not what the same step gives eagerly{stale}: {difference} "
        f"(pattern {run.pattern})",
    )


def _unmoved(run: Run, steps: Sequence[ReplayedStep]) -> Iterator[Finding]:
    """Rows that were live in several replays and gave the same bits in all of them."""
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
