"""The smallest set of options with which a combination of a survey still fails.

Each option of a failing combination is set back to its plain value. What still fails the same way without an option
does not need it. A combination that holds a set found before is counted to it, without trials.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from harness.core.cases import Case, Job
from harness.core.params import Params
from harness.core.records import CaseResult, OptionSet, Verdict
from harness.diagnose.blame import primary
from harness.run.pool import Pool
from harness.scenario.schema import Given
from harness.scenario.variant import vary


def smallest_sets(
    pool: Pool,
    failures: Sequence[tuple[Job, CaseResult]],
    plain: Params,
    *,
    seconds: float,
    on_trial: Callable[[Case], None] | None = None,
) -> list[OptionSet]:
    """The sets of options that explain `failures`, in the order in which they were found.

    `plain` has the plain value of each parameter. Trials stop after `seconds`; what is left is returned as it is.
    """
    deadline, found = time.monotonic() + seconds, list[OptionSet]()
    for job, result in failures:
        place = next((i for i, one in enumerate(found) if _explains(one, job, result)), len(found))
        if place == len(found):
            found.append(_reduced(pool, job, result, plain, deadline, on_trial))
        found[place] = found[place].model_copy(update={"keys": (*found[place].keys, job.key)})
    return found


def _reduced(
    pool: Pool,
    job: Job,
    result: CaseResult,
    plain: Params,
    deadline: float,
    on_trial: Callable[[Case], None] | None,
) -> OptionSet:
    case, smallest, needed, num_trials = job.case, result, set[str](), 0
    while left := [name for name in _differing(case.params, plain) if name not in needed]:
        if time.monotonic() >= deadline:
            break
        params = case.params.model_copy(update={left[0]: getattr(plain, left[0])})
        tried = vary(job.case, params, job.case.poison)
        if on_trial is not None:
            on_trial(tried)
        num_trials += 1
        (trial,) = pool.run_in_order([job.model_copy(update={"key": tried.id, "case": tried})])
        if trial.has_failed and _symptom(trial) == _symptom(result):
            case, smallest = tried, trial
        else:
            needed.add(left[0])
    options = _differing(case.params, plain)
    return OptionSet(options=options, case=case, result=smallest, num_trials=num_trials, is_smallest=not left)


def _explains(one: OptionSet, job: Job, result: CaseResult) -> bool:
    """Whether the job has all options of the set, and failed alike."""
    given: dict[str, Any] = job.case.params.model_dump(mode="json")
    return _symptom(one.result) == _symptom(result) and all(given[name] == value for name, value in one.options.items())


def _symptom(result: CaseResult) -> tuple[Verdict, str]:
    return result.verdict, primary(result.findings).oracle if result.findings else ""


def _differing(params: Params, plain: Params) -> Given:
    ours, theirs = params.model_dump(mode="json"), plain.model_dump(mode="json")
    return {name: value for name, value in ours.items() if theirs[name] != value}
