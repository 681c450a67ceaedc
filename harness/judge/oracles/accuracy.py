"""Oracle `accuracy`: every epoch against the baseline, question by question, and against the first epoch."""

from __future__ import annotations

from harness.accuracy.baselines import Baseline, baseline_of
from harness.accuracy.judge import judge as judge_run
from harness.core.errors import InputError
from harness.core.records import AccuracyRecord, Finding, Verdict
from harness.judge.run_records import Evidence, Judgement


def judge(evidence: Evidence, baseline: Baseline | None = None) -> Judgement:
    """One finding for each reason of the verdict; the record goes with it. `looked_at` counts answers.

    Raises InputError when no baseline is stored for this model, engine and dtype: without one, a run that is wrong
    from its first epoch on would look flat.
    """
    judgement = Judgement()
    for run in evidence.runs:
        if run.accuracy is None:
            continue
        against = baseline or baseline_of(run.accuracy)
        if against is None:
            header = run.accuracy.header
            raise InputError(
                f"no baseline for task {header.task} of {header.model} ({header.model_hash}, {header.dtype}); "
                "make it with `mla-harness baseline update`"
            )
        case = evidence.case
        record = judge_run(run.accuracy, baseline=against, scenario=case.scenario, case=case.id)
        judgement.accuracy = record
        judgement.looked_at += len(run.accuracy.results)
        judgement.findings += findings_of(record)
    return judgement


def findings_of(record: AccuracyRecord, oracle: str = "accuracy") -> list[Finding]:
    """The reasons of a failed verdict, each with the curve and the power of the whole run."""
    if record.verdict is not Verdict.FAIL:
        return []
    curve = ", ".join(f"{epoch.accuracy:.4f}" for epoch in record.epochs)
    drop = record.judgement.smallest_drop
    power = "no drop could have been seen" if drop is None else f"a drop of {drop:.2%} would have been seen"
    before = f", baseline {record.baseline.accuracy:.4f}" if record.baseline else ""
    return [
        Finding(
            oracle=oracle,
            tensor=record.task,
            where=_epoch(reason),
            message=f"{reason}; accuracy {curve}{before}; {power}",
        )
        for reason in record.judgement.reasons
    ]


def _epoch(reason: str) -> str:
    """Which epoch a reason speaks of; all of them when it names none."""
    words = reason.replace(":", " ").split()
    return f"epoch {words[1]}" if words[0] == "epoch" else "all epochs"
