"""The smallest case that still fails for the same reason, found by one reduction after another.

A smaller case counts if
- it fails for the same reason: the same oracle, site and cause;
- it passes without the fault, if one is injected;
- it does not fail for this reason without poison, unless the first case does too.
The last two rules exclude cases that are too small to run.

A reduction never makes a case larger, so a series of reductions ends. Numbers shrink towards their
least. Lists lose entries, and their entries shrink. Choices change to the plainest one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.core.cases import Case, Job, PoisonPlan
from harness.core.catalog import ENGINES, KERNELS, SYSTEMS
from harness.core.cause_codes import WhyNot
from harness.core.errors import InputError
from harness.core.files import read_rows
from harness.core.finding_words import kind_of
from harness.core.findings import Finding
from harness.core.records import Blame, CaseResult, ShrinkStep, Shrunk, Verdict
from harness.diagnose.blame import find_blame
from harness.diagnose.budget import Budget
from harness.diagnose.reduce import Reducer, fewer, primary, same_failure
from harness.run.pool import JobPool
from harness.scenario.schema import Given
from harness.scenario.variant import shown, vary

_TABLES = read_rows(Path(__file__).with_name("shrink.yaml"))
PLAINEST: dict[str, list[Any]] = _TABLES["plainest"]
POWERS: list[str] = _TABLES["powers"]
ONLY_WITH: dict[str, str] = _TABLES["only_with"]
FIRST: list[str] = _TABLES["first"]
LEAST_POWER = 8


@dataclass(slots=True)
class _Search:
    """A search for the smallest case that fails as `job` does, for the reason `symptom`."""

    pool: JobPool
    job: Job
    symptom: Finding
    needs_poison: bool
    deadline: float
    num_trials: int = 0
    steps: list[ShrinkStep] = field(default_factory=list)

    def smallest(
        self, blame: Blame, on_step: Callable[[ShrinkStep], None] | None = None
    ) -> tuple[Case, Finding, bool]:
        """Reduce all fields, until a round changes none.

        Returns the case, its finding, and if the time was enough.
        """
        case = self.job.case
        finding = self.symptom
        changed = True
        if self.job.sites is not None:
            # The job poisons other sites than its case says. What is shrunk is what ran.
            case = case.but(poison=case.poison.but(sites=self.job.sites))
        reducer = Reducer(self.tried, self.pool.num_workers, self.deadline, self.controls_hold)
        # A smaller value of one field may allow a smaller one of a field before it.
        while changed:
            changed = False
            # In a fixed order and with no chance, so that a case always shrinks to the same one.
            for name in fields_of(case):
                before = self.num_trials
                while found := reducer.first(reductions(self.job.case, case, name, blame.sites)):
                    reduction, finding = found
                    case = reduction.case
                    changed = True
                    texts = {"before": shown(reduction.before), "after": shown(reduction.after)}
                    self.steps.append(
                        ShrinkStep(what=reduction.what, tried=self.num_trials - before, **texts)
                    )
                    before = self.num_trials
                    if on_step is not None:
                        on_step(self.steps[-1])
                if reducer.is_out_of_time:
                    return case, finding, False
        return case, finding, True

    def tried(self, candidates: Sequence[Reduction]) -> list[Finding | None]:
        """For each candidate, its finding with the reason of this search, or None."""
        results = self._run([self._trial(reduction) for reduction in candidates])
        return [self._same(result) for result in results]

    def controls_hold(self, reduction: Reduction) -> bool:
        """Whether the reduced case passes without the fault, and has another result without
        poison.
        """
        trial = self._trial(reduction)
        is_fault = self.job.fault is not None
        controls = [trial.but(fault=None)] if is_fault else []
        results = self._run([*controls, trial.but(sites=())] if self.needs_poison else controls)
        # Without its fault the small case must pass, or it fails for another reason than the one
        # sought.
        if is_fault and results[0].verdict is not Verdict.PASS:
            return False
        return not self.needs_poison or self._same(results[-1]) is None

    def _trial(self, reduction: Reduction) -> Job:
        return self.job.but(case=reduction.case, sites=None)

    def _run(self, jobs: list[Job]) -> list[CaseResult]:
        first = self.num_trials
        self.num_trials = self.num_trials + len(jobs)
        numbered = [
            job.but(key=f"{self.job.key}~shrink:{number}") for number, job in enumerate(jobs, first)
        ]
        return self.pool.run_in_order(numbered) if numbered else []

    def _same(self, result: CaseResult) -> Finding | None:
        """The finding of `result` with the reason of this search, or None."""
        return same_failure(self.symptom, result, kind_of)


def why_not(job: Job) -> WhyNot | None:
    """Why a job cannot be shrunk, in a sentence; None when it can be."""
    if job.case.kind.shows_launches:
        return None
    able = " or ".join(spec.name for spec in SYSTEMS if spec.shows_launches)
    return WhyNot(
        f"a case of system {job.case.system} takes too long a trial; shrink one of {able}"
    )


def shrink(
    pool: JobPool,
    job: Job,
    result: CaseResult | None = None,
    *,
    blame: Blame | None = None,
    oracle: str | None = None,
    seconds: float = 60.0,
    blame_budget: Budget | None = None,
    on_step: Callable[[ShrinkStep], None] | None = None,
) -> Shrunk:
    """The smallest variant of `job.case` that fails as `result` does, with the steps to it.

    The reason is the first finding of `oracle`, or else the primary finding. A missing `result` or
    `blame` is found first, in extra time; a blame that is not found within `blame_budget` is done
    without. The answer is always the same, unless `seconds` end the search (then `is_smallest` is
    false). Raises InputError if the job does not fail or its system cannot be shrunk.
    """
    if reason := why_not(job):
        raise InputError(f"{job.case.id}: {reason}")
    started = time.monotonic()
    result = result or pool.run_in_order([job])[0]
    if not result.has_failed:
        ended = f" ({result.reason})" if result.reason else ""
        raise InputError(
            f"{job.case.id}: ends in {result.verdict.value}{ended}; only a failing case can be"
            " shrunk"
        )
    if blame is None or (not blame.trials and job.case.poison.sites):
        is_sought = blame_budget is None or not blame_budget.is_spent
        found = find_blame(pool, [(job, result)], blame_budget) if is_sought else {}
        blame, _ = found.get(job.key, (Blame(), 0.0))
    symptom = next((f for f in result.findings if f.oracle == oracle), primary(result.findings))
    # A failure that needs poison must go on needing it: else the small case shows another bug.
    needs_poison = blame.trials.get("nothing") == Verdict.PASS.value
    search = _Search(pool, job, symptom, needs_poison, deadline=time.monotonic() + seconds)
    smallest, finding, is_smallest = search.smallest(blame, on_step)
    return Shrunk(
        key=job.key,
        id=job.case.id,
        fault=job.fault,
        case=smallest,
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
    return job.but(key=key, case=shrunk.case, sites=None)


@dataclass(frozen=True, slots=True)
class Reduction:
    """One step towards a smaller case: the name of a value, its value before, and its value in
    `case`.
    """

    what: str
    before: Any
    after: Any
    case: Case


def fields_of(case: Case) -> list[str]:
    """The values of a case that can be reduced, in the order to try: poison first, then
    parameters.
    """
    names = list(type(case.params).model_fields)
    together = case.params.TOGETHER
    ordered = sorted(names, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    return ["sites", "patterns", "strict", *(["each request"] if together else []), *ordered]


def reductions(
    base: Case, case: Case, field: str, blamed: Sequence[str] = ()
) -> Iterator[Reduction]:
    """Yield the legal cases that are smaller than `case` in `field`, the largest step first, as
    variants of `base`.

    `blamed` are the sites to try first.
    """
    if field in ("sites", "patterns", "strict"):
        for value in _smaller_poison(case.poison, field, tuple(blamed)):
            poison = case.poison.model_copy(update={field: value})
            yield Reduction(
                field, getattr(case.poison, field), value, vary(base, case.params, poison)
            )
        return
    model = type(case.params)
    values = case.params.model_dump(mode="json")
    for before, changes in _smaller_params(case, values, field):
        try:
            params = model.model_validate(model.settled(values | changes))
        # Fields depend on each other; a value that does not fit the others is no candidate.
        except ValidationError:
            continue
        if params != case.params:
            yield Reduction(
                field, before, changes.get(field, changes), vary(base, params, case.poison)
            )


def _smaller_poison(plan: PoisonPlan, field: str, blamed: tuple[str, ...]) -> Iterator[Any]:
    if field == "strict":
        yield from (False,) if plan.strict else ()
    elif field == "sites":
        chosen = tuple(site for site in plan.sites if site in blamed)
        if chosen and len(chosen) < len(plan.sites):
            yield chosen
        yield from (tuple(rest) for rest in fewer(plan.sites, least=0))
    else:
        yield from ((pattern,) for pattern in plan.patterns if len(plan.patterns) > 1)
        yield from (tuple(rest) for rest in fewer(plan.patterns, least=2))


def _smaller_params(case: Case, values: Given, field: str) -> Iterator[tuple[Any, Given]]:
    """Yield the value before and the parameters to change, for each reduction of one field."""
    if field == "each request":
        names = case.params.TOGETHER
        requests = list(zip(*(values[name] for name in names), strict=True))
        for rest in fewer(requests, least=1):
            yield (
                requests,
                {
                    name: list(column)
                    for name, column in zip(names, zip(*rest, strict=True), strict=True)
                },
            )
        return
    value = values[field]
    needed = ONLY_WITH.get(field)
    if needed is not None and values.get(needed, "none") in (0, "none"):
        return
    for smaller in _smaller(case, field, value):
        yield value, {field: smaller}


def _smaller(case: Case, field: str, value: Any) -> Iterator[Any]:
    default = type(case.params).model_fields[field].default
    if (op := case.kind.kernels_of(case.op).get(field)) is not None:
        # The engine's default kernel instead of another built-in one. The kernel of a kernel case
        # stays.
        is_built_in = (name := f"{op}/{value}") in KERNELS and KERNELS.get(
            name
        ).origin == "built in"
        if not case.kind.with_op and value != default and is_built_in:
            yield default
    elif field in PLAINEST:
        plainest = PLAINEST[field]
        yield from plainest[: plainest.index(value)] if value in plainest else plainest
    elif field in POWERS:
        # An engine's kernel is made for its sizes. With others it may take the worker down, and a
        # new one imports the engine again.
        if not any(spec.origin in ENGINES for spec in case.known_kernels()):
            yield from (power for place in range(13) if (power := LEAST_POWER << place) < value)
    elif isinstance(value, list):
        # A request may have no keys. A request of an engine has at least one token, and gives one.
        least = [0] if field in ("seq_lens", "context_lens") else [1, 1]
        yield from _smaller_list(value, least, least_length=0 if default == () else 1)
    elif isinstance(value, bool | str):
        # Of other choices the default is plainest.
        yield from (default,) if default != value else ()
    elif isinstance(value, int):
        yield from _smaller_int(value, _least(case, field))


def _smaller_list(values: list[Any], least: list[int], *, least_length: int) -> Iterator[list[Any]]:
    """Yield lists with fewer entries, then with one smaller entry: a number, a pair of numbers or a
    word.
    """
    yield from (list(rest) for rest in fewer(values, least=least_length))
    for place, entry in enumerate(values):
        for smaller in _smaller_entry(entry, least):
            yield [*values[:place], smaller, *values[place + 1 :]]


def _smaller_entry(entry: Any, least: list[int]) -> Iterator[Any]:
    if isinstance(entry, int):
        yield from _smaller_int(entry, least[0])
    elif isinstance(entry, list):
        for place, number in enumerate(entry):
            # The other part of a pair may be a word, such as the kind of a state change.
            for smaller in _smaller_int(number, least[place]) if isinstance(number, int) else ():
                yield [*entry[:place], smaller, *entry[place + 1 :]]


def _smaller_int(value: int, least: int) -> Iterator[int]:
    """Yield the least and the next (the least may be illegal), then numbers nearer to `value` by
    halves.
    """
    yield from (smaller for smaller in (least, least + 1) if smaller < value)
    gap = (value - least) // 2
    while gap >= 1:
        yield value - gap
        gap //= 2


def _least(case: Case, field: str) -> int:
    for item in type(case.params).model_fields[field].metadata:
        if getattr(item, "ge", None) is not None:
            return int(item.ge)
    return 1
