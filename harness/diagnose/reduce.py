"""One reducer behind blame, shrink and the smallest options: smaller candidates, the largest step
first.

A candidate counts if it fails as before. Several run side by side, and the first that counts is
taken, so the result does not depend on the number of workers. Reductions end, as each makes
something smaller (Zeller's delta debugging).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

from harness.core.catalog import most_telling_first
from harness.core.findings import Finding
from harness.core.records import CaseResult

CandidateT = TypeVar("CandidateT")
SeenT = TypeVar("SeenT")
ValueT = TypeVar("ValueT")


def primary(findings: Sequence[Finding]) -> Finding:
    """The finding that explains the cause best. Raises ValueError if there is none."""
    if not findings:
        raise ValueError("a result without findings has no cause")
    return most_telling_first(findings)[0]


def same_failure(
    finding: Finding, trial: CaseResult, key: Callable[[Finding], Any]
) -> Finding | None:
    """The finding of a failed `trial` with the same `key` as `finding`, or None."""
    found = trial.findings if trial.has_failed else ()
    return next((one for one in found if key(one) == key(finding)), None)


def fewer(values: Sequence[ValueT], *, least: int = 0) -> Iterator[list[ValueT]]:
    """Yield `values` without a half, a quarter, … and last without single entries, but with at
    least `least`.
    """
    size = len(values) - least
    while size >= 1:
        for start in range(0, len(values), size):
            rest = [*values[:start], *values[start + size :]]
            if least <= len(rest) < len(values):
                yield rest
        # Half of it, rounded up. The half of 1 would be 1 again, and the loop would not end.
        size = min(size - 1, (size + 1) // 2)


def without_each(values: Sequence[ValueT]) -> list[tuple[ValueT, ...]]:
    """`values` without the first, without the second, and so on."""
    return [(*values[:place], *values[place + 1 :]) for place in range(len(values))]


@dataclass(slots=True)
class Reducer(Generic[CandidateT, SeenT]):
    """Tries candidates until `deadline`, `width` at a time.

    `run` returns for each candidate what it showed if it fails as before, else None. `counts` says
    whether such a candidate is accepted, for example by controls that must pass.
    """

    run: Callable[[Sequence[CandidateT]], Sequence[SeenT | None]]
    width: int
    deadline: float
    counts: Callable[[CandidateT], bool] = lambda candidate: True

    @property
    def is_out_of_time(self) -> bool:
        return time.monotonic() >= self.deadline

    def first(self, candidates: Iterable[CandidateT]) -> tuple[CandidateT, SeenT] | None:
        """The first candidate that counts, with what it showed; None if there is none or the time
        is up.
        """
        waiting = iter(candidates)
        while not self.is_out_of_time:
            batch = list(islice(waiting, self.width))
            if not batch:
                return None
            for candidate, seen in zip(batch, self.run(batch), strict=True):
                if seen is not None and self.counts(candidate):
                    return candidate, seen
        return None
