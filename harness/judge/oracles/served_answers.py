"""Oracle `answers`: a serving engine answers at least as many questions right as its canary does, in every epoch."""

from __future__ import annotations

from harness.accuracy.judge import judge as judge_run
from harness.core.records import AccuracyLimits
from harness.judge.oracles.accuracy import findings_of
from harness.judge.run_records import Evidence, Judgement


def judge(evidence: Evidence) -> Judgement:
    """As oracle `accuracy`, but against the case's own least accuracy: kernels of a GPU round as their batch falls.

    A baseline of every release, backend and cache type would be as many files; the canary's own accuracy is known.
    """
    judgement = Judgement()
    case = evidence.case
    least = getattr(case.params, "least_correct_percent", 0) / 100
    for run in evidence.runs:
        if run.accuracy is None:
            continue
        record = judge_run(
            run.accuracy,
            limits=AccuracyLimits(accuracy=least, flips=None, alpha=1e-6),
            scenario=case.scenario,
            case=case.id,
        )
        judgement.accuracy = judgement.accuracy or record
        judgement.looked_at += len(run.accuracy.results)
        judgement.findings += findings_of(record, oracle="answers")
    return judgement
