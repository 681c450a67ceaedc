"""The smallest set of options with which a combination of a survey still fails.

The combinations themselves suggest it: the options that all failures of a kind share, and no right
combination has. A trial with these alone is made first. Then each option of the failing combination
is set back to its plain value; what still fails the same way without an option does not need it.
Options are tried alone, side by side, and then all that were not needed together; only if this does
not fail they are tried one after another. A combination that holds a set found before is counted to
it, without trials. A known failure is reduced like any other.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from typing import Any

from harness.core.cases import Case, Job
from harness.core.findings import Finding
from harness.core.params import Params
from harness.core.records import CaseResult, OptionSet, Verdict
from harness.diagnose.reduce import Reducer, primary, same_failure
from harness.run.pool import JobPool
from harness.scenario.schema import Given
from harness.scenario.variant import vary

MOST_SUSPECTED = 4
"""Options of a suspected set at most: a covering array says little of larger ones."""


def smallest_sets(
    pool: JobPool,
    failures: Sequence[tuple[Job, CaseResult]],
    plain: Params,
    *,
    seconds: float,
    right: Sequence[Params] = (),
) -> list[OptionSet]:
    """The sets of options that explain `failures`, in the order in which they were found.

    `plain` has the plain value of each parameter, `right` are the combinations that did not fail.
    Trials stop after `seconds`; what is left is returned as it is.
    """
    deadline = time.monotonic() + seconds
    found = list[OptionSet]()
    kinds = by_symptom(failures)
    for job, result in failures:
        place = next((i for i, one in enumerate(found) if _explains(one, job, result)), len(found))
        if place == len(found):
            found.append(
                _reduced(
                    pool, job, result, plain, deadline, suspected(kinds[_symptom(result)], right)
                )
            )
        found[place] = found[place].but(keys=(*found[place].keys, job.key))
    return found


def is_failure(result: CaseResult) -> bool:
    """Whether a combination is to be explained: it failed, known or not."""
    return result.has_failed or result.verdict is Verdict.KNOWN


def by_symptom(failures: Iterable[tuple[Job, CaseResult]]) -> dict[tuple[str, str], list[Params]]:
    """The combinations that failed alike, by the oracle and, of a crash, the name of the error."""
    kinds: dict[tuple[str, str], list[Params]] = {}
    for job, result in failures:
        kinds.setdefault(_symptom(result), []).append(job.case.params)
    return kinds


def suspected(failures: Sequence[Params], right: Sequence[Params]) -> Given:
    """The smallest set of options that all `failures` have and none of `right`; empty if several
    such sets fit.
    """
    first, *others = (params.model_dump(mode="json") for params in failures)
    shared = [
        name for name, value in first.items() if all(other[name] == value for other in others)
    ]
    sound = [params.model_dump(mode="json") for params in right]
    # An option that all right combinations have too explains nothing.
    varied = [name for name in shared if any(row[name] != first[name] for row in sound)]
    for size in range(1, MOST_SUSPECTED + 1):
        sets = [
            names
            for names in itertools.combinations(varied, size)
            if not any(all(row[name] == first[name] for name in names) for row in sound)
        ]
        if sets:
            return {name: first[name] for name in sets[0]} if len(sets) == 1 else {}
    return {}


def _reduced(
    pool: JobPool, job: Job, result: CaseResult, plain: Params, deadline: float, suspects: Given
) -> OptionSet:
    case = job.case
    smallest = result
    num_trials = 0
    symptom = primary(result.findings)

    def fails_without(sets: Sequence[Sequence[str]]) -> list[tuple[Case, CaseResult] | None]:
        """Set the options of each set back.

        Returns the case and its result where it fails as before.
        """
        nonlocal num_trials
        plainer = [
            case.params.but(**{name: getattr(plain, name) for name in names}) for names in sets
        ]
        tried = [vary(case, params, case.poison) for params in plainer]
        num_trials += len(tried)
        trials = pool.run_in_order([job.but(key=one.id, case=one) for one in tried])
        return [
            (one, trial) if same_failure(symptom, trial, _key) else None
            for one, trial in zip(tried, trials, strict=True)
        ]

    reducer = Reducer(fails_without, 1, deadline)
    rest = [name for name in _differing(case.params, plain) if name not in suspects]
    # One trial may be enough: all other options set back at once.
    if suspects and rest and (found := reducer.first([rest])):
        _, (case, smallest) = found
    left = list(_differing(case.params, plain))
    if left and not reducer.is_out_of_time:
        # Side by side, as these trials do not depend on each other.
        alone = fails_without([[name] for name in left])
        left = [name for name, seen in zip(left, alone, strict=True) if seen]
        if left and (found := reducer.first([left])):
            _, (case, smallest) = found
            left = []
    while left and not reducer.is_out_of_time:
        found = reducer.first([[left.pop(0)]])
        # Two options may each stand in for the other: then one of them stays.
        case, smallest = found[1] if found else (case, smallest)
    options = _differing(case.params, plain)
    return OptionSet(
        options=options, case=case, result=smallest, num_trials=num_trials, is_smallest=not left
    )


def _explains(one: OptionSet, job: Job, result: CaseResult) -> bool:
    given: dict[str, Any] = job.case.params.model_dump(mode="json")
    return _symptom(one.result) == _symptom(result) and all(
        given[name] == value for name, value in one.options.items()
    )


def _symptom(result: CaseResult) -> tuple[str, str]:
    """The oracle, and of a crash the error."""
    return _key(primary(result.findings)) if result.findings else ("", "")


def _key(finding: Finding) -> tuple[str, str]:
    return finding.oracle, finding.error


def _differing(params: Params, plain: Params) -> Given:
    ours = params.model_dump(mode="json")
    theirs = plain.model_dump(mode="json")
    return {name: value for name, value in ours.items() if theirs[name] != value}
