"""Replays of a captured graph, and oracle `replay`: a replay gives the bits of the same eager step,
and its answer changes with its inputs.

Without the second part, an engine that always gives one answer would pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.core.cause_codes import Code
from harness.core.finding_words import place
from harness.core.findings import Finding
from harness.core.oracles import OracleSpec
from harness.evidence.records import Evidence, Judgement, Run

if TYPE_CHECKING:
    import torch

    from harness.evidence.compare import Mismatch


@dataclass(slots=True)
class ReplayedStep:
    """One replay of a captured graph beside the same step run eagerly on a copy of the same
    memory.
    """

    step: int
    name: str
    replayed: torch.Tensor
    eager: torch.Tensor
    live: torch.Tensor
    eager_again: torch.Tensor | None = None
    """A second eager run, if the first differs and the device may not repeat its bits."""
    stale_site: str | None = None
    """The site of a captured input that differed from the input of the eager step."""
    stale: str = ""
    """The part of the graph that read memory without an owner, the tensor, and who wrote it last.
    """
    inputs: tuple[int, ...] = ()
    """A number for what each live row was computed from; empty if each replay has inputs of its
    own.
    """


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
    from harness.evidence.compare import compare_bits

    for run in evidence.runs:
        steps = run.all(ReplayedStep)
        for step in steps:
            comparison = compare_bits(step.replayed, step.eager, step.live)
            mismatch = comparison.mismatch
            differs = mismatch is not None and not _is_spread(step, notes)
            yield (
                comparison.looked_at,
                [_unlike_eager(run, step, mismatch)] if mismatch and differs else [],
            )
        for name in dict.fromkeys(step.name for step in steps):
            yield 0, _unmoved(run, [step for step in steps if step.name == name])


def _is_spread(step: ReplayedStep, notes: list[str]) -> bool:
    """Whether a second eager run on the same memory is as far from the first as the replay is.

    Adds a note if so.
    """
    from harness.evidence.compare import explanation, largest_difference

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
    import torch
    from torch_poison.patterns import hex_bits

    height = max(len(step.live) for step in steps)
    seen = torch.zeros(height, dtype=torch.int64)
    moved = torch.zeros(height, dtype=torch.bool)
    latest: dict[int, torch.Tensor] = {}
    given: dict[int, int] = {}
    for step in steps:
        for row in step.live.nonzero().flatten().tolist():
            if row >= len(step.replayed):
                # A graph of fewer rows than the batch has: the comparison above tells it.
                continue
            answer = step.replayed[row]
            inputs = step.inputs[row] if step.inputs else None
            # Two requests with one prompt give the same answers, one behind the other.
            is_repeated = inputs is not None and given.get(row) == inputs
            moved[row] |= row in latest and _differ(answer, latest[row])
            latest[row] = answer
            given |= {} if inputs is None else {row: inputs}
            seen[row] += not is_repeated
    # A row that was live once cannot show whether it moves.
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
        cause=Code.UNMOVED,
        message=(
            f"the replay of {last.name} gives the same bits in {int(seen[row])} steps although its"
            f" inputs change (pattern {run.pattern})"
        ),
    )


def _differ(answer: torch.Tensor, before: torch.Tensor) -> bool:
    import torch

    from harness.evidence.compare import compare_bits

    one = torch.ones(1, dtype=torch.bool, device=answer.device)
    return compare_bits(answer[None], before[None], one).mismatch is not None


ORACLES = (
    OracleSpec(
        "replay",
        "a graph replay equals the same step run eagerly, and its answer changes when its inputs"
        " change",
        replay,
        needs="graph",
        rank=140,
    ),
)
