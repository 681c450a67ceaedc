"""Oracle `streams`: an engine with graphs generates what the same engine generates without them."""

from __future__ import annotations

from harness.core.records import Finding
from harness.judge.run_records import Evidence, Judgement

ALLOWED_SHARE = 0.05
"""Rounding on a GPU depends on the batch and may decide a near tie otherwise. A stale plan changes all answers."""


def judge(evidence: Evidence) -> Judgement:
    """Compare the text of each answer of the first epoch. One finding when more than the allowed share differ."""
    judgement = Judgement()
    for run in evidence.runs:
        if run.accuracy is None or run.eager is None:
            continue
        with_graphs = {result.question: result for result in run.accuracy.epoch(1)}
        shared = [(with_graphs[other.question], other) for other in run.eager.epoch(1) if other.question in with_graphs]
        different = [ours.question for ours, other in shared if ours.answer_hash != other.answer_hash]
        judgement.looked_at += len(shared)
        if len(different) > ALLOWED_SHARE * len(shared):
            judgement.findings.append(
                Finding(
                    oracle="streams",
                    tensor="generated text",
                    where=f"epoch 1, {len(different)} of {len(shared)} questions",
                    message=f"{len(different)} of {len(shared)} answers with graphs differ from those without "
                    f"(allowed for rounding: {ALLOWED_SHARE:.0%})",
                )
            )
    return judgement
