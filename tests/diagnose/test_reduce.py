"""The reducer: smaller sets, the same failure, and the first candidate that counts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.core.finding_words import kind_of
from harness.core.findings import Finding
from harness.core.records import CaseResult, Verdict
from harness.diagnose.reduce import Reducer, fewer, same_failure, without_each


def test_fewer_drops_large_parts_first_and_single_entries_last_down_to_the_least() -> None:
    assert list(fewer("abc")) == [[], ["c"], ["a", "b"], ["b", "c"], ["a", "c"], ["a", "b"]]
    assert (
        all(len(rest) >= 2 for rest in fewer("abcd", least=2)) and list(fewer("ab", least=2)) == []
    )
    assert without_each(("a", "b")) == [("b",), ("a",)]


def test_the_first_candidate_that_counts_is_taken_for_any_number_of_workers() -> None:
    for width in (1, 2, 8):
        asked: list[int] = []

        def run(batch: Sequence[int], asked: list[int] = asked) -> list[str | None]:
            asked += batch
            return [f"seen {number}" if number > 2 else None for number in batch]

        reducer = Reducer(run, width, math.inf, lambda number: number != 3)
        assert reducer.first(range(10)) == (4, "seen 4") and len(asked) <= 4 + width
    assert Reducer(run, 2, 0.0).first([5]) is None, "the time is up"


def test_the_same_failure_is_decided_by_codes_and_a_pass_is_none() -> None:
    finding = Finding(oracle="crash", cause="raised", error="ValueError", message="3 is wrong")
    again, other = (
        finding.model_copy(update={"message": "other words"}),
        finding.model_copy(update={"error": "OSError"}),
    )

    def trial(*findings: Finding) -> CaseResult:
        return CaseResult(key="k", id="k", scenario="s", verdict=Verdict.CRASH, findings=findings)

    assert same_failure(finding, trial(other, again), kind_of) == again
    assert same_failure(finding, trial(other), kind_of) is None
    assert (
        same_failure(finding, trial(again).model_copy(update={"verdict": Verdict.PASS}), kind_of)
        is None
    )
