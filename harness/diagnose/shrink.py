"""The smallest case that still fails for the same reason, found by one reduction after another.

A smaller case counts if
- it fails for the same reason: the same oracle, site and sentence;
- it passes without the fault, if one is injected;
- it does not fail for this reason with nothing poisoned, unless the first case does too.
The last two rules exclude cases that are too small to run. Several trials run at a time, and the first reduction that
counts is taken, so the result does not depend on the number of workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from harness.core.cases import Job
from harness.core.catalog import SYSTEMS
from harness.core.errors import InputError
from harness.core.finding_words import kind_of
from harness.core.records import Blame, CaseResult, Finding, ShrinkStep, Shrunk, Verdict
from harness.diagnose.blame import find_blame, primary
from harness.diagnose.reductions import Reduction, fields_of, reductions
from harness.run.pool import Pool
from harness.scenario.variant import shown


@dataclass(slots=True)
class _Search:
    """The state of a search."""

    pool: Pool
    job: Job
    kind: tuple[str, ...]
    needs_poison: bool
    deadline: float
    num_trials: int = 0
    steps: list[ShrinkStep] = field(default_factory=list)

    @property
    def is_out_of_time(self) -> bool:
        return time.monotonic() >= self.deadline


def why_not(job: Job) -> str:
    """Why a job cannot be shrunk, in a sentence; empty when it can be."""
    if job.case.kind.shows_launches:
        return ""
    able = " or ".join(spec.name for spec in SYSTEMS if spec.shows_launches)
    return f"a case of system {job.case.system} takes too long a trial; shrink one of {able}"


def shrink(
    pool: Pool,
    job: Job,
    result: CaseResult | None = None,
    *,
    blame: Blame | None = None,
    oracle: str | None = None,
    seconds: float = 60.0,
    on_step: Callable[[ShrinkStep], None] | None = None,
) -> Shrunk:
    """The smallest variant of `job.case` that fails as `result` does, with the steps to it.

    The reason is the first finding of `oracle`, or else the primary finding. A missing `result` or `blame` is found
    first, in extra time. The answer is always the same, unless `seconds` end the search (then `is_smallest` is false).
    Raises InputError if the job does not fail or its system cannot be shrunk.
    """
    if reason := why_not(job):
        raise InputError(f"{job.case.id}: {reason}")
    started = time.monotonic()
    result = result or pool.run_in_order([job])[0]
    if not result.has_failed:
        reason = f" ({result.reason})" if result.reason else ""
        raise InputError(f"{job.case.id}: ends in {result.verdict.value}{reason}; only a failing case can be shrunk")
    if blame is None or (not blame.trials and job.case.poison.sites):
        blame, _ = find_blame(pool, [(job, result)])[job.key]
    symptom = next((f for f in result.findings if f.oracle == oracle), primary(result.findings))
    needs_poison = blame.trials.get("nothing") == Verdict.PASS.value
    search = _Search(pool, job, kind_of(symptom), needs_poison, deadline=time.monotonic() + seconds)
    smallest, finding, is_smallest = _search(search, symptom, blame, on_step)
    return Shrunk(
        key=job.key,
        id=job.case.id,
        fault=job.fault,
        case=smallest.case,
        oracle=symptom.oracle,
        sites=blame.sites,
        finding=finding,
        steps=tuple(search.steps),
        num_trials=search.num_trials,
        seconds=round(time.monotonic() - started, 3),
        is_smallest=is_smallest,
    )


def job_of(job: Job, shrunk: Shrunk) -> Job:
    """The job that runs the smallest case of `shrunk` as `job` ran."""
    key = f"{shrunk.case.id}!{job.fault}" if job.fault else shrunk.case.id
    return job.model_copy(update={"key": key, "case": shrunk.case, "sites": None})


def _search(
    search: _Search, finding: Finding, blame: Blame, on_step: Callable[[ShrinkStep], None] | None
) -> tuple[Job, Finding, bool]:
    """Reduce all fields, until a round changes none. Returns the job, its finding, and whether the time was enough."""
    current = search.job
    if search.job.sites is not None:
        poison = current.case.poison.model_copy(update={"sites": search.job.sites})
        current = current.model_copy(update={"case": current.case.model_copy(update={"poison": poison}), "sites": None})
    base, changed = search.job.case, True
    while changed:
        changed = False
        for name in fields_of(current.case):
            while True:
                before = search.num_trials
                found = _first_that_counts(search, reductions(base, current.case, name, blame.sites))
                if search.is_out_of_time and found is None:
                    return current, finding, False
                if found is None:
                    break
                reduction, finding = found
                current = current.model_copy(update={"case": reduction.case})
                texts = {"before": shown(reduction.before), "after": shown(reduction.after)}
                step = ShrinkStep(what=reduction.what, tried=search.num_trials - before, **texts)
                search.steps.append(step)
                changed = True
                if on_step is not None:
                    on_step(step)
    return current, finding, True


def _first_that_counts(search: _Search, candidates: Iterator[Reduction]) -> tuple[Reduction, Finding] | None:
    """The first of `candidates` that counts, with its finding; None if there is none or the time is up."""
    while not search.is_out_of_time:
        batch = list(islice(candidates, search.pool.num_workers))
        if not batch:
            return None
        results = _run(search, [_trial(search, reduction) for reduction in batch])
        for reduction, result in zip(batch, results, strict=True):
            finding = _same(search, result)
            if finding is not None and _controls_hold(search, reduction):
                return reduction, finding
    return None


def _trial(search: _Search, reduction: Reduction) -> Job:
    return search.job.model_copy(update={"case": reduction.case, "sites": None})


def _controls_hold(search: _Search, reduction: Reduction) -> bool:
    """Whether the reduced case passes without the fault, and has another result with nothing poisoned."""
    trial = _trial(search, reduction)
    controls = []
    if search.job.fault is not None:
        controls.append(trial.model_copy(update={"fault": None}))
    if search.needs_poison:
        controls.append(trial.model_copy(update={"sites": ()}))
    results = _run(search, controls)
    if search.job.fault is not None and results[0].verdict is not Verdict.PASS:
        return False
    return not search.needs_poison or _same(search, results[-1]) is None


def _run(search: _Search, jobs: list[Job]) -> list[CaseResult]:
    numbered = [
        job.model_copy(update={"key": f"{search.job.key}~shrink:{search.num_trials + place}"})
        for place, job in enumerate(jobs)
    ]
    search.num_trials += len(jobs)
    return search.pool.run_in_order(numbered) if numbered else []


def _same(search: _Search, result: CaseResult) -> Finding | None:
    """The finding of `result` with the reason of this search, or None."""
    findings = result.findings if result.has_failed else ()
    return next((finding for finding in findings if kind_of(finding) == search.kind), None)
