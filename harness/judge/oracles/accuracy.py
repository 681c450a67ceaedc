"""Oracles of the answers to a task's questions.

`accuracy` compares each epoch with a stored baseline, question by question, and with the first
epoch. `answers`, for a served engine, compares it with the least accuracy that the case allows.
`streams`: an engine with graphs generates what the same engine generates without them. `sequences`
takes what scripts of requests found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.accuracy.answer_log import AccuracyRun
from harness.accuracy.baselines import Baseline, baseline_of
from harness.accuracy.judge import judge as judge_run
from harness.core.cause_codes import Code
from harness.core.errors import InputError
from harness.core.records import AccuracyLimits, AccuracyRecord, Finding, Verdict
from harness.judge.run_records import Evidence, Judgement, Run


def judge(evidence: Evidence, baseline: Baseline | None = None) -> Judgement:
    """One finding for each reason of the verdict, with the record. `looked_at` counts answers.

    Raises InputError without a stored baseline of this model, engine and dtype: a run that is wrong
    from its first epoch on would look flat.
    """

    def against(run: Run, answered: AccuracyRun) -> dict[str, Any]:
        if found := baseline or baseline_of(answered):
            return {"baseline": found}
        header = answered.header
        raise InputError(
            f"no baseline for task {header.task} of {header.model} ({header.model_hash},"
            f" {header.dtype}); make it with `mla-harness baseline update`"
        )

    return _judged(evidence, "accuracy", against)


def _judged(
    evidence: Evidence, oracle: str, against: Callable[[Run, AccuracyRun], dict[str, Any]]
) -> Judgement:
    """The judgement of an oracle. `against` says what the answers of a run are compared with."""
    judgement, case = Judgement(), evidence.case
    for run in evidence.runs:
        if run.accuracy is not None:
            how = against(run, run.accuracy)
            record = judge_run(run.accuracy, scenario=case.scenario, case=case.id, **how)
            judgement.accuracy = judgement.accuracy or record
            judgement.looked_at += len(run.accuracy.results)
            judgement.findings += _findings(record, oracle)
    return judgement


def sequences(evidence: Evidence) -> Judgement:
    """The findings of the scripts of requests. `looked_at` counts compared tokens."""
    results = [result for run in evidence.runs for result in run.scripts]
    found = Judgement.of((result.looked_at["sequences"], result.findings) for result in results)
    found.notes = [result.reason for result in results if not result.findings]
    return found


def answers(evidence: Evidence) -> Judgement:
    """As oracle `accuracy`, against the least accuracy of the case: the rounding of GPU kernels
    depends on their batch.

    A baseline for every release, backend and cache type would be as many files. The canary's own
    accuracy is known.
    """

    def against(run: Run, answered: AccuracyRun) -> dict[str, Any]:
        if run.least_accuracy is None:
            raise ValueError(
                f"{evidence.case.id}: its target names no least accuracy, so every accuracy would"
                " pass"
            )
        return {"limits": AccuracyLimits(accuracy=run.least_accuracy, flips=None, alpha=1e-6)}

    return _judged(evidence, "answers", against)


def _findings(record: AccuracyRecord, oracle: str) -> list[Finding]:
    """One finding for each reason of a failed verdict, with the curve and the power of the run."""
    if record.verdict is not Verdict.FAIL:
        return []
    curve = ", ".join(f"{epoch.accuracy:.4f}" for epoch in record.epochs)
    drop = record.judgement.smallest_drop
    power = (
        "no drop could have been seen"
        if drop is None
        else f"a drop of {drop:.2%} would have been seen"
    )
    before = f", baseline {record.baseline.accuracy:.4f}" if record.baseline else ""
    return [
        Finding(
            oracle=oracle,
            tensor=record.task,
            where=f"epoch {kind.epoch}" if kind.epoch else "all epochs",
            cause=kind.cause,
            message=f"{reason}; accuracy {curve}{before}; {power}",
        )
        for kind, reason in zip(record.judgement.kinds, record.judgement.reasons, strict=True)
    ]


ALLOWED_SHARE = 0.05
"""Rounding on a GPU depends on the batch and may decide a near tie otherwise.

A stale plan changes all answers.
"""


def streams(evidence: Evidence) -> Judgement:
    """Compare the text of each answer of the first epoch.

    One finding when more than the allowed share differ.
    """
    judgement = Judgement()
    for run in evidence.runs:
        if run.accuracy is None or run.eager is None:
            continue
        with_graphs = {result.question: result for result in run.accuracy.epoch(1)}
        shared = [
            (with_graphs[other.question], other)
            for other in run.eager.epoch(1)
            if other.question in with_graphs
        ]
        different = [
            ours.question for ours, other in shared if ours.answer_hash != other.answer_hash
        ]
        judgement.looked_at += len(shared)
        if len(different) > ALLOWED_SHARE * len(shared):
            count, allowed = (
                f"{len(different)} of {len(shared)}",
                f"(allowed for rounding: {ALLOWED_SHARE:.0%})",
            )
            message = f"{count} answers with graphs differ from those without {allowed}"
            named: dict[str, Any] = {
                "oracle": "streams",
                "tensor": "generated text",
                "cause": Code.DIFFERS,
            }
            judgement.findings.append(
                Finding(**named, where=f"epoch 1, {count} questions", message=message)
            )
    return judgement
