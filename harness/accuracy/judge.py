"""The verdict of an accuracy run: counts, flips, tests and limits, and one sentence for people.

The tests are from scipy: Wilson's interval, exact McNemar, a paired trend, and power.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.accuracy.answer_log import AccuracyRun, QuestionResult
from harness.accuracy.backends import CANARY_NOTE
from harness.accuracy.baselines import Baseline
from harness.accuracy.tasks import STOCK
from harness.core.cause_codes import Code
from harness.core.errors import InputError
from harness.core.extras import numpy, stats
from harness.core.findings import Finding
from harness.core.records import (
    AccuracyJudgement,
    AccuracyLimits,
    AccuracyReason,
    AccuracyRecord,
    BaselineUse,
    EpochAccuracy,
    Flips,
    Interval,
    OutcomeGrid,
    Verdict,
)

_FAULTY = {
    "unanswered": "were not answered",
    "empty": "are empty",
    "unparsed": "do not parse",
    "invalid_tokens": "hold invalid tokens",
}
_HEADER = {"task", "model", "model_hash", "engine", "dtype", "seed", "note", "filter"}
POWER = 0.8
BY_POWER = f"{POWER:.0%} power".replace("%", " %")
MEND = "ask more questions, more epochs or with a baseline, or set the least accuracy"
LARGE_DROP = 0.25
"""A smallest drop above it is no evidence of health: the statement says that the questions are too
few.
"""


def judge(
    run: AccuracyRun,
    *,
    baseline: Baseline | None = None,
    limits: AccuracyLimits | None = None,
    scenario: str = "",
    case: str = "",
    fault: str | None = None,
) -> AccuracyRecord:
    """Turn a run into its record.

    Raises InputError when the baseline has another task or other questions.
    """
    use = _use(run, baseline)
    counted = [_count(run.epoch(n), n) for n in range(1, run.header.num_epochs + 1)]
    epochs = tuple(epoch.but(**_against_reference(run, epoch.epoch, baseline)) for epoch in counted)
    judgement = _judge(run, epochs, use, limits or AccuracyLimits())
    return AccuracyRecord(
        scenario=scenario,
        case=case,
        fault=fault,
        **run.header.model_dump(include=_HEADER),
        epochs=epochs,
        ci=tuple(epoch.interval for epoch in epochs),
        baseline=use,
        verdict=judgement.verdict,
        judgement=judgement,
        grid=_grid(run, baseline),
        seconds=run.seconds,
    )


def findings_of(record: AccuracyRecord) -> list[Finding]:
    judgement = record.judgement
    pairs = zip(judgement.kinds, judgement.reasons, strict=True)
    return [Finding(oracle="accuracy", message=reason, cause=kind.cause) for kind, reason in pairs]


def _use(run: AccuracyRun, baseline: Baseline | None) -> BaselineUse | None:
    if baseline is None:
        return None
    if (baseline.task, baseline.filter) != (run.header.task, run.header.filter):
        raise InputError(
            f"baseline {baseline.name}: it is of task {baseline.task} under filter"
            f" {baseline.filter}, the run of {run.header.task} under {run.header.filter}"
        )
    outcomes = baseline.outcomes
    shared = [outcomes[question] for question in run.header.questions if question in outcomes]
    if not shared:
        raise InputError(f"baseline {baseline.name}: it holds none of the questions of this run")
    # A run of few questions is compared to these questions alone.
    return BaselineUse(
        name=baseline.name,
        accuracy=sum(shared) / len(shared),
        interval=wilson_interval(sum(shared), len(shared)),
        num_shared=len(shared),
    )


def _count(results: Sequence[QuestionResult], epoch: int) -> EpochAccuracy:
    num_correct = sum(result.correct for result in results)
    # Unanswered questions are counted apart: an outage is no loss of accuracy.
    reasons = Counter(result.unanswered for result in results if result.unanswered is not None)
    return EpochAccuracy(
        epoch=epoch,
        num_questions=len(results),
        num_correct=num_correct,
        accuracy=num_correct / len(results) if results else 0.0,
        interval=wilson_interval(num_correct, len(results)),
        unanswered=reasons.total(),
        empty=sum(result.empty for result in results),
        unparsed=sum(result.unparsed for result in results),
        invalid_tokens=sum(result.invalid_tokens for result in results),
        retried=sum(result.num_attempts > 1 for result in results),
        num_tokens=sum(result.num_tokens for result in results),
        unanswered_reasons=dict(reasons.most_common()),
    )


def _outcomes(results: Sequence[QuestionResult]) -> dict[str, bool]:
    """Question -> right or wrong. An unanswered question has no outcome; it has its own limit."""
    return {result.question: result.correct for result in results if result.unanswered is None}


def _against_reference(
    run: AccuracyRun, epoch: int, baseline: Baseline | None
) -> dict[str, object]:
    changed = len(run.changed(epoch))
    if baseline is None and epoch == 1:
        return {"changed": changed}
    reference = baseline.outcomes if baseline else _outcomes(run.epoch(1))
    flips = flips_between(
        reference, _outcomes(run.epoch(epoch)), baseline.name if baseline else "epoch 1"
    )
    return {"changed": changed, "flips": flips}


def flips_between(before: dict[str, bool], after: dict[str, bool], reference: str) -> Flips:
    """How the answers to the same questions differ, question -> whether it was right; `reference`
    names `before`.
    """
    shared = [question for question in after if question in before]
    lost = sum(before[question] and not after[question] for question in shared)
    gained = sum(after[question] and not before[question] for question in shared)
    return Flips(
        reference=reference,
        num_shared=len(shared),
        lost=lost,
        gained=gained,
        p_value=mcnemar_p(lost, gained),
    )


def _judge(
    run: AccuracyRun,
    epochs: Sequence[EpochAccuracy],
    use: BaselineUse | None,
    limits: AccuracyLimits,
) -> AccuracyJudgement:
    num_questions = len(run.header.questions)
    for epoch in epochs:
        # A part of the questions is no measurement: the first ones may be the easy ones.
        if num_missing := num_questions - epoch.num_questions:
            statement = (
                f"epoch {epoch.epoch} lacks {num_missing} of {num_questions} questions: continue"
                " with --resume"
            )
            kinds = (AccuracyReason(cause=Code.INCOMPLETE, epoch=epoch.epoch),)
            return AccuracyJudgement(
                verdict=Verdict.ERROR, statement=statement, reasons=(statement,), kinds=kinds
            )
    first, *others = by_epoch = [_outcomes(run.epoch(epoch.epoch)) for epoch in epochs]
    # The trend compares the same questions in all epochs.
    asked = [question for question in first if all(question in epoch for epoch in others)]
    trend = (
        trend_p([[epoch[question] for question in asked] for epoch in by_epoch]) if others else None
    )
    compared = [epoch.flips for epoch in epochs if epoch.flips]
    p_values = [flips.p_value for flips in compared] + ([trend] if trend is not None else [])
    num_flips = len(
        {name for later in others for name in later if name in first and later[name] != first[name]}
    )
    reasons = [
        *_significant_drops(epochs, trend, len(p_values), limits.alpha),
        *_limit_reasons(epochs, limits),
        *_flip_reasons(run, num_flips, limits),
    ]
    power = _power(run, epochs, use, limits, p_values)
    judgement = AccuracyJudgement(
        verdict=Verdict.FAIL if reasons else Verdict.SKIP if power.why_nothing else Verdict.PASS,
        statement="",
        least=limits.accuracy,
        reasons=tuple(words for _, words in reasons),
        kinds=tuple(kind for kind, _ in reasons),
        # Several tests at once find a difference by chance more often than one does.
        p_value=adjust(p_values),
        trend_p_value=trend,
        num_tests=len(p_values),
        smallest_drop=power.drop,
        num_flips=num_flips,
    )
    return judgement.but(statement=_statement(run, epochs, judgement, use, power, limits))


@dataclass(frozen=True, slots=True)
class _Power:
    """What a run could have shown.

    `drop` is the smallest loss of accuracy that it would have seen, None if it would have seen
    none, and `how` why it would have. `why_nothing` is the reason why the run could have shown
    nothing, in one clause; else it is empty.
    """

    drop: float | None
    how: str
    why_nothing: str


def _power(
    run: AccuracyRun,
    epochs: Sequence[EpochAccuracy],
    use: BaselineUse | None,
    limits: AccuracyLimits,
    p_values: Sequence[float],
) -> _Power:
    """What the comparisons of a run could have shown:

    McNemar's test, and the flips that the run may have.

    A run that would have seen nothing short of the loss of every right answer shows nothing: most
    errors lose some. A least accuracy is a question of its own, and always answered. Between epochs
    a limit of flips sees more than a test does. It sees nothing of an engine that is as wrong in
    each epoch, so where there is a baseline, that decides.
    """
    compared = [epoch.flips for epoch in epochs if epoch.flips]
    num_shared = min((flips.num_shared for flips in compared), default=0)
    # What could have been lost depends on what was right before.
    reference = use.accuracy if use else epochs[0].accuracy
    right = round(reference * num_shared)
    limit = _flip_limit(run, limits)
    by_test = None
    if p_values:
        gained = min((flips.gained for flips in compared), default=0)
        by_test = smallest_drop(num_shared, reference, limits.alpha / len(p_values), gained)
    if use is None and len(epochs) > 1 and limit is not None and limit < right:
        by_flips = (limit + 1) / num_shared
        if by_test is None or by_flips < by_test:
            return _Power(
                by_flips, f"{limit + 1} {'flip fails' if limit == 0 else 'flips fail'} the run", ""
            )
    why = ""
    if not p_values:
        why = "there is nothing to compare with, as it has one epoch and no baseline"
    elif not right:
        why = f"no answer of {'the baseline' if use else 'epoch 1'} is right, so none could be lost"
    elif by_test is None:
        why = f"even the loss of all {right} right answers would not have been significant"
    elif round(by_test * num_shared) == right:
        why = f"nothing short of the loss of all {right} right answers would have been seen"
    # A difference that was seen could be seen.
    has_seen = bool(p_values) and min(p_values) * len(p_values) <= limits.alpha
    return _Power(by_test, BY_POWER, "" if limits.accuracy or has_seen else why)


def _significant_drops(
    epochs: Sequence[EpochAccuracy], trend: float | None, num_tests: int, alpha: float
) -> Iterator[tuple[AccuracyReason, str]]:
    for epoch in epochs:
        flips = epoch.flips
        if flips and flips.lost > flips.gained and flips.p_value * num_tests <= alpha:
            changed = f"lost {flips.lost} and gained {flips.gained} of {flips.num_shared:,} answers"
            test = f"exact McNemar, adjusted p = {flips.p_value * num_tests:.2g}"
            words = f"epoch {epoch.epoch} {changed} against {flips.reference} ({test})"
            yield AccuracyReason(cause=Code.DROP, epoch=epoch.epoch), words
    if trend is not None and trend * num_tests <= alpha:
        words = (
            "accuracy falls over the epochs (signed-rank trend, adjusted p ="
            f" {trend * num_tests:.2g})"
        )
        yield AccuracyReason(cause=Code.TREND), words


def _limit_reasons(
    epochs: Sequence[EpochAccuracy], limits: AccuracyLimits
) -> Iterator[tuple[AccuracyReason, str]]:
    for epoch in epochs:
        kind = AccuracyReason(cause=Code.LIMIT, epoch=epoch.epoch)
        for name, words in _FAULTY.items():
            limit = getattr(limits, name)
            count = getattr(epoch, name)
            if limit is not None and count > limit * epoch.num_questions:
                share = f"{count} of {epoch.num_questions:,} answers {words} (limit {limit:.1%})"
                why = next(iter(epoch.unanswered_reasons), "") if name == "unanswered" else ""
                yield kind, f"epoch {epoch.epoch}: {share}" + (f": {why}" if why else "")
        if limits.accuracy is not None and epoch.accuracy < limits.accuracy:
            yield (
                kind,
                f"epoch {epoch.epoch}: accuracy {epoch.accuracy:.4f} is below {limits.accuracy}",
            )


def _flip_limit(run: AccuracyRun, limits: AccuracyLimits) -> int | None:
    """How many answers may flip between epochs; None for any number."""
    return 0 if limits.flips is None and run.header.deterministic else limits.flips


def _flip_reasons(
    run: AccuracyRun, num_flips: int, limits: AccuracyLimits
) -> Iterator[tuple[AccuracyReason, str]]:
    limit = _flip_limit(run, limits)
    if limit is not None and num_flips > limit:
        why = "of a deterministic engine " if run.header.deterministic else ""
        yield (
            AccuracyReason(cause=Code.FLIPS),
            f"{num_flips} answers {why}flipped between epochs (limit {limit})",
        )


def _statement(
    run: AccuracyRun,
    epochs: Sequence[EpochAccuracy],
    judgement: AccuracyJudgement,
    use: BaselineUse | None,
    power: _Power,
    limits: AccuracyLimits,
) -> str:
    accuracies = ", ".join(f"{epoch.accuracy:.4f}" for epoch in epochs)
    parts = [f"accuracy {accuracies}" + (f" (baseline {use.accuracy:.4f})" if use else "")]
    parts += judgement.reasons
    is_pass = judgement.verdict is Verdict.PASS
    drop = judgement.smallest_drop
    if judgement.verdict is Verdict.SKIP:
        parts.append(f"this run could have shown nothing: {power.why_nothing}; {MEND}")
    if len(epochs) > 1 and judgement.num_flips == 0:
        why = ", as a deterministic engine must give" if run.header.deterministic else ""
        parts.append(f"0 flips in {len(epochs)} epochs{why}")
    elif judgement.num_flips and is_pass:
        parts.append(f"{judgement.num_flips} flips between epochs are within chance")
    if is_pass and limits.accuracy:
        parts.append(f"no epoch is below {limits.accuracy}")
    if is_pass and judgement.p_value is not None:
        parts.append(f"no significant drop (adjusted p = {judgement.p_value:.2g})")
    if judgement.verdict is Verdict.SKIP or not judgement.num_tests:
        pass
    elif drop is None:
        parts.append("no drop could have been seen with so few questions right")
    elif is_pass and drop > LARGE_DROP:
        parts.append(f"too few questions: only a drop of {drop:.0%} or more would have been seen")
    else:
        parts.append(f"a drop of {drop:.2%} would have been seen ({power.how})")
    if CANARY_NOTE in run.header.note and run.header.task in STOCK:
        canary = "the model is a canary, which knows only its own questions"
        parts.append(f"{canary}: near 0 is what it must come to on {run.header.task}")
    return "; ".join(parts)


def _grid(run: AccuracyRun, baseline: Baseline | None) -> OutcomeGrid:
    questions = run.header.questions
    rows = tuple(
        "".join(_mark(run.results.get((epoch, question))) for question in questions)
        for epoch in range(1, run.header.num_epochs + 1)
    )
    outcomes = baseline.outcomes if baseline else {}
    marks = {True: "1", False: "0", None: "."}
    before = "".join(marks[outcomes.get(question)] for question in questions) if baseline else ""
    return OutcomeGrid(questions=questions, rows=rows, baseline=before)


def _mark(result: QuestionResult | None) -> str:
    if result is None:
        return "."
    if result.unanswered is not None:
        return "u"
    if result.invalid_tokens and not result.correct:
        return "i"
    if result.empty:
        return "e"
    if result.unparsed:
        return "p"
    return "1" if result.correct else "0"


def wilson_interval(num_correct: int, num_questions: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a share; (0, 1) without questions."""
    if num_questions == 0:
        return (0.0, 1.0)
    found = stats.binomtest(num_correct, num_questions).proportion_ci(confidence, method="wilson")
    return (float(found.low), float(found.high))


def mcnemar_p(lost: int, gained: int) -> float:
    """Exact two-sided McNemar test: chance loses as many questions as it gains. 1 without a
    flip.
    """
    if lost + gained == 0:
        return 1.0
    return float(stats.binomtest(lost, lost + gained, 0.5).pvalue)


def trend_p(outcomes: Sequence[Sequence[bool]]) -> float:
    """P-value of falling accuracy: one-sided Wilcoxon signed-rank test on the questions' slopes
    over the epochs.

    `outcomes[e][q]` is true when question q was right in epoch e. Epochs share their questions, so
    they are not independent, which Cochran and Armitage's test would need. The test is paired: by
    chance, a question's slope falls as often as it rises. 1 with fewer than two epochs or without a
    slope.
    """
    table = numpy.asarray(outcomes, dtype=float)
    if table.ndim != 2 or table.shape[0] < 2 or table.shape[1] == 0:
        return 1.0
    # Centred, so that a question that is right in all epochs, or in none, has no slope.
    epochs = numpy.arange(table.shape[0]) - (table.shape[0] - 1) / 2
    slopes = epochs @ table
    # Slopes are multiples of a half, so equal slopes are exactly equal.
    if not numpy.any(slopes):
        return 1.0
    return float(stats.wilcoxon(slopes, alternative="less", zero_method="wilcox").pvalue)


def adjust(p_values: Sequence[float]) -> float | None:
    """The smallest p-value times their number (Bonferroni), at most 1; None without p-values."""
    return min(1.0, min(p_values) * len(p_values)) if p_values else None


def mcnemar_power(num_questions: int, drop: float, gain: float, alpha: float) -> float:
    """The probability that exact McNemar at `alpha` detects a loss of the share `drop`.

    Each question is lost with probability `drop + gain` and gained with probability `gain`.
    """
    lose = drop + gain
    discordant = min(1.0, lose + gain)
    if num_questions == 0 or discordant == 0:
        return 0.0
    flips = numpy.arange(1, num_questions + 1)
    # The fewest losses that are significant among each number of flips: 2 P(X >= fewest) <= alpha.
    fewest = stats.binom.isf(alpha / 2, flips, 0.5) + 1
    seen = stats.binom.sf(fewest - 1, flips, lose / (lose + gain))
    return float(numpy.sum(stats.binom.pmf(flips, num_questions, discordant) * seen))


def smallest_drop(
    num_questions: int, accuracy: float, alpha: float, gained: int = 0
) -> float | None:
    """The smallest drop in accuracy, in whole questions, that the test detects with 80 % power.

    `gained` is the number of questions that the run gained against its reference. None when the
    test would not detect even the loss of every right answer.
    """
    if num_questions == 0:
        return None
    gain = gained / num_questions
    drops = [lost / num_questions for lost in range(1, round(accuracy * num_questions) + 1)]
    # The power rises with the drop.
    found = bisect_left(
        drops, POWER, key=lambda drop: mcnemar_power(num_questions, drop, gain, alpha)
    )
    return drops[found] if found < len(drops) else None
