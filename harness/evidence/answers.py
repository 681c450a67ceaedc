"""The answers to a task's questions.

`accuracy` compares each epoch with a stored baseline, question by question, and with the first
epoch. `answers`, for a served engine, compares it with the least accuracy that the case allows.
`streams`: an engine with graphs generates what the same engine generates without them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.cause_codes import Code
from harness.core.errors import InputError
from harness.core.finding_words import few
from harness.core.findings import Finding
from harness.core.oracles import OracleSpec
from harness.evidence.counts import Count
from harness.evidence.records import Evidence, Judgement

if TYPE_CHECKING:
    from harness.accuracy.answer_log import AccuracyRun
    from harness.accuracy.baselines import Baseline
    from harness.core.records import AccuracyRecord


@dataclass(slots=True)
class Answered:
    """The result of every question in every epoch."""

    results: AccuracyRun
    least_accuracy: float | None = None
    """The least share of right answers that the case allows, for oracle `answers`."""
    eager: AccuracyRun | None = None
    """The same questions to the same engine without graphs, if the target compares both."""

    @classmethod
    def read(cls, folder: Path, least_accuracy: float | None = None) -> Answered:
        """The answers that `Questions.ask` kept in a folder. Raises InputError without any."""
        from harness.accuracy.answer_log import read_run

        return cls(read_run(folder), least_accuracy)

    def accepted_drafts(self) -> list[Count]:
        """The drafts of each epoch, which must all be accepted.

        An epoch without drafts has no count: its server counted none.
        """
        from harness.accuracy.acceptance import read_drafts

        return [
            Count(
                "accepted drafts",
                counted.drafted,
                counted.accepted,
                ": ".join(filter(None, [f"epoch {epoch}", few(counted.refused)])),
                "acceptance",
            )
            for epoch, counted in read_drafts(self.results.path.parent).items()
            if counted.drafted
        ]


def accuracy(evidence: Evidence, baseline: Baseline | None = None) -> Judgement:
    """One finding for each reason of the verdict, with the record. `looked_at` counts answers.

    Raises InputError without a stored baseline of this model, engine and dtype: a run that is wrong
    from its first epoch on would look flat.
    """
    from harness.accuracy.baselines import baseline_of

    def against(answered: Answered) -> dict[str, Any]:
        if found := baseline or baseline_of(answered.results):
            return {"baseline": found}
        header = answered.results.header
        raise InputError(
            f"no baseline for task {header.task} of {header.model} ({header.model_hash},"
            f" {header.dtype}); make it with `mla-harness baseline update`"
        )

    return _judged(evidence, "accuracy", against)


def _judged(
    evidence: Evidence, oracle: str, against: Callable[[Answered], dict[str, Any]]
) -> Judgement:
    """The judgement of an oracle. `against` says what the answers of a run are compared with."""
    from harness.accuracy.judge import judge

    judgement = Judgement()
    case = evidence.case
    for answered, _ in evidence.all(Answered):
        how = against(answered)
        record = judge(answered.results, scenario=case.scenario, case=case.id, **how)
        # Reports show one record, that of the main run.
        judgement.accuracy = judgement.accuracy or record
        judgement.looked_at += len(answered.results.results)
        judgement.findings += _findings(record, oracle)
    return judgement


def answers(evidence: Evidence) -> Judgement:
    """As oracle `accuracy`, against the least accuracy of the case: the rounding of GPU kernels
    depends on their batch.

    A baseline for every release, backend and cache type would be as many files. The canary's own
    accuracy is known.
    """
    from harness.core.records import AccuracyLimits

    def against(answered: Answered) -> dict[str, Any]:
        if answered.least_accuracy is None:
            raise ValueError(
                f"{evidence.case.id}: its target names no least accuracy, so every accuracy would"
                " pass"
            )
        # Rounding moves single answers from batch to batch. Only a drop that chance hardly ever
        # makes counts.
        return {"limits": AccuracyLimits(accuracy=answered.least_accuracy, flips=None, alpha=1e-6)}

    return _judged(evidence, "answers", against)


def _findings(record: AccuracyRecord, oracle: str) -> list[Finding]:
    """One finding for each reason of a failed verdict, with the curve and the power of the run."""
    from harness.core.records import Verdict

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
    for answered, _ in evidence.all(Answered):
        if answered.eager is None:
            continue
        with_graphs = {result.question: result for result in answered.results.epoch(1)}
        # A run that was cut short has asked fewer questions.
        shared = [
            (with_graphs[other.question], other)
            for other in answered.eager.epoch(1)
            if other.question in with_graphs
        ]
        different = [
            ours.question for ours, other in shared if ours.answer_hash != other.answer_hash
        ]
        judgement.looked_at += len(shared)
        if len(different) > ALLOWED_SHARE * len(shared):
            count = f"{len(different)} of {len(shared)}"
            judgement.findings.append(
                Finding(
                    oracle="streams",
                    tensor="generated text",
                    where=f"epoch 1, {count} questions",
                    cause=Code.DIFFERS,
                    message=(
                        f"{count} answers with graphs differ from those without (allowed for"
                        f" rounding: {ALLOWED_SHARE:.0%})"
                    ),
                )
            )
    return judgement


ORACLES = (
    OracleSpec(
        "accuracy",
        "in every epoch the canary answers as many questions right as its baseline, and the same"
        " ones",
        accuracy,
        needs="answers",
        rank=450,
    ),
    OracleSpec(
        "streams",
        "vLLM generates the same text with graphs and without",
        streams,
        needs="graph",
        rank=460,
    ),
    OracleSpec(
        "answers",
        "in every epoch vLLM answers as many questions right as the canary is known to, with no"
        " invalid token",
        answers,
        needs="answers",
        rank=470,
    ),
)
