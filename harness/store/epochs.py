"""Runs of `mla-harness epochs`: a run directory with one job, judged by its `accuracy.jsonl`
alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from harness.accuracy.acceptance import MARGIN, Drafts, acceptance_in_words, read_drafts
from harness.accuracy.answer_log import FILE_NAME, AccuracyRun, NoAnswers, RunHeader, read_run
from harness.accuracy.baselines import Baseline, baseline_of, read_baseline
from harness.accuracy.epochs import REPEATS_FILE
from harness.accuracy.judge import findings_of, judge
from harness.accuracy.tasks import least_of_canary
from harness.core.cases import Case, Job
from harness.core.cause_codes import Code
from harness.core.files import BASELINES, write_atomic
from harness.core.finding_words import few
from harness.core.findings import Finding
from harness.core.model_params import ModelParams
from harness.core.records import FAILED, AccuracyLimits, CaseResult, Verdict
from harness.core.stored import NoFile, read_json, read_text, value_of
from harness.store.run_folder import RunStore

SCENARIO = "epochs"
BASELINE_FOLDER = "baseline"
_NUMBERS = TypeAdapter(list[int])


def choose_baseline(header: RunHeader, wanted: Path | None) -> Path | None:
    """The baseline's file: `wanted`, or the one of this task, model, engine and dtype, or None.

    Raises InputError before the run when `wanted` has other questions.
    """
    run = AccuracyRun(header, {}, Path(FILE_NAME))
    if wanted is None or wanted.is_dir():
        directory = wanted or BASELINES
        found = baseline_of(run, directory)
        is_of_use = found is not None and not found.outcomes.keys().isdisjoint(header.questions)
        return directory / f"{found.name}.yaml" if found and is_of_use else None
    # Refuses a baseline of other questions now, and not after hours of asking.
    judge(run, baseline=read_baseline(wanted))
    return wanted


def create(
    root: Path,
    header: RunHeader,
    questions: ModelParams,
    baseline: Path | None,
    command: str,
    named: str = "",
) -> RunStore:
    """Make the run directory.

    It gets a copy of the baseline: a later change of it must not change the verdict. `named` is
    what the user called it. Without a baseline, a canary must answer what it knows.
    """
    is_as_shipped = questions.data_dir is None and questions.max_tokens is None
    if baseline is None and questions.least is None and is_as_shipped:
        least = least_of_canary(header.task, header.model, len(header.questions))
        questions = questions.but(least=least)
    name = f"{SCENARIO}[task={header.task},model={header.model}]"
    oracles = ("accuracy", "repeats") if questions.repeat else ("accuracy",)
    case = Case(
        id=name,
        scenario=SCENARIO,
        system="model",
        params=questions,
        oracles=oracles,
        seed=header.seed,
    )
    options: dict[str, Any] = {SCENARIO: questions.model_dump()}
    if named:
        # Beside the questions, which a resumed run asks: its baseline is the copy.
        options["baseline"] = named
    store = RunStore.create(root, [Job(key=name, case=case)], command=command, options=options)
    if baseline:
        (store.path / BASELINE_FOLDER).mkdir()
        write_atomic(store.path / BASELINE_FOLDER / baseline.name, read_text(baseline))
    return store


def stored_baseline(store: RunStore) -> Baseline | None:
    paths = sorted((store.path / BASELINE_FOLDER).glob("*.yaml"))
    return read_baseline(paths[0]) if paths else None


def take_in(store: RunStore) -> None:
    """Judge the answers of a killed run: they are on disk, and no result counts them yet."""
    try:
        num_answers = len(read_run(store.path).results)
    except NoAnswers:
        return
    counted = [result.looked_at.get("accuracy", 0) for result in store.finished().values()]
    if counted != [num_answers]:
        store.add(judged(store, trouble="the run was killed"))


def judged(store: RunStore, *, trouble: str = "", log: str = "", died: bool = False) -> CaseResult:
    """The result of the run, from the files.

    `trouble` says what ended it early, `died` whether it crashed.
    """
    (job,) = store.plan.jobs
    result = CaseResult(
        key=job.key, id=job.case.id, scenario=SCENARIO, verdict=Verdict.ERROR, log=log
    )
    try:
        run = read_run(store.path)
    except NoAnswers:
        return result.but(reason=trouble or "nothing was answered before the run ended")
    asked = job.case.params_as(ModelParams)
    limits = AccuracyLimits(accuracy=asked.least)
    baseline = stored_baseline(store)
    record = judge(run, baseline=baseline, limits=limits, scenario=SCENARIO, case=job.case.id)
    record = record.but(seconds=store.plan.seconds)
    different = _unrepeated(store)
    drafts = read_drafts(store.path)
    refused = _refused(drafts, asked.least_acceptance, baseline)
    verdict = Verdict.CRASH if died else Verdict.FAIL if different or refused else record.verdict
    if verdict is Verdict.SKIP and (different is not None or asked.least_acceptance is not None):
        # Its accuracy could have shown nothing. Something else was judged.
        verdict = Verdict.PASS
    if any(epoch.drafted for epoch in drafts.values()):
        statement = f"{record.judgement.statement}; {acceptance_in_words(list(drafts.values()))}"
        record = record.but(judgement=record.judgement.but(statement=statement))
    reason = "; ".join(filter(None, [trouble, record.judgement.statement]))
    if different == []:
        reason += f"; {asked.repeat} greedy answers are the same the second time"
    findings = findings_of(record) + refused
    if different:
        which = few([str(number) for number in different])
        message = (
            f"{len(different)} of {asked.repeat} greedy answers differ the second time: prompts"
            f" {which}"
        )
        findings.append(Finding(oracle="repeats", message=message, cause=Code.DIFFERS))
    if died:
        findings.insert(0, Finding(oracle="crash", message=trouble, cause=Code.DIED))
    looked_at = {"accuracy": len(run.results)}
    looked_at |= {"repeats": asked.repeat} if different is not None else {}
    looked_at |= {"acceptance": sum(epoch.drafted for epoch in drafts.values())} if drafts else {}
    return result.but(
        verdict=verdict,
        cause=Code.POWERLESS if verdict is Verdict.SKIP else "",
        reason=reason,
        findings=tuple(findings) if verdict in FAILED else (),
        looked_at=looked_at,
        accuracy=record,
        seconds=store.plan.seconds,
    )


def _unrepeated(store: RunStore) -> list[int] | None:
    """The prompts with another second answer; None if none was asked twice."""
    file = store.path / REPEATS_FILE
    try:
        return value_of(_NUMBERS, read_json(file), file)
    except NoFile:
        return None


def _refused(
    epochs: dict[int, Drafts], least: float | None, baseline: Baseline | None
) -> list[Finding]:
    """A finding for each epoch that accepted less than it may, and for a server that counts no
    drafts.
    """
    why = f"less than {least}"
    if (
        baseline
        and baseline.acceptance is not None
        and baseline.acceptance - MARGIN > (least or 0.0)
    ):
        # The stricter limit of the two counts.
        least = baseline.acceptance - MARGIN
        why = f"{MARGIN} or more below the {baseline.acceptance:.4f} of the baseline"
    if least is None:
        return []
    if not any(drafts.drafted for drafts in epochs.values()):
        message = "the server's /metrics count no drafts, so no acceptance is judged"
        return [Finding(oracle="acceptance", message=message, cause=Code.INCOMPLETE)]
    low = {epoch: drafts for epoch, drafts in epochs.items() if drafts.share < least}
    said = {
        epoch: f"{one.share:.4f} of {one.drafted} drafts were accepted, {why}"
        for epoch, one in low.items()
    }
    named = {"oracle": "acceptance", "cause": Code.DROP}
    return [
        Finding(**named, where=f"epoch {epoch}", message=message) for epoch, message in said.items()
    ]
