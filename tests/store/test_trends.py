"""Trends say what the runs said, in their order; a case is flaky only when nothing else can be the
cause.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.store.history.entry import Entry, PastRuns, RunEntry
from harness.store.history.trends import Trends, trends_of, trends_over

from .entries import fault

MakeRun = Callable[..., RunEntry]
Fill = Callable[..., PastRuns]


def over_all(runs: PastRuns) -> Trends:
    return trends_over([*runs][::-1])


def up_to(runs: PastRuns, run_id: str, num_runs: int = 30) -> Trends:
    run = runs.named(run_id)
    assert run is not None
    return trends_of(run, runs, num_runs=num_runs)


def test_verdicts_seconds_and_accuracies_are_aligned_with_the_runs_oldest_first(
    filled: Fill, make_run: MakeRun
) -> None:
    measured = Entry("m[x=1]", "m", "fail", 3.0, accuracies=(1.0, 0.5))
    path = filled(
        # Written out of order, as an import may: what counts is when a run started.
        make_run(3, {"a[x=1]": "crash", "m[x=1]": measured}),
        make_run(1, {"a[x=1]": "pass", "a[x=2]": "skip"}),
        make_run(2, {"b": "pass"}),
        make_run(4, {"a[x=1]": "error", "a[x=2]": "pass"}),
    )
    found = up_to(path, "run-0004")
    assert [run.run_id for run in found.runs] == ["run-0001", "run-0003", "run-0004"], (
        "run 2 has no case of run 4"
    )
    assert {case.key: case.verdicts for case in found.cases} == {"a[x=1]": "pce", "a[x=2]": "s.p"}
    assert found.cases[0].seconds == (0.25, 0.25, 0.25)
    assert {case.key: case.seconds for case in found.cases}["a[x=2]"] == (None, None, 0.25), (
        "a skip takes no time"
    )
    (only,) = [case for case in over_all(path).cases if case.key == "m[x=1]"]
    assert only.accuracies == (None, None, 0.5, None), "the lowest epoch is told"


def test_totals_count_each_verdict_and_planned_cases_that_never_ran(
    filled: Fill, make_run: MakeRun
) -> None:
    path = filled(make_run(1, {"a": "pass", "b": "fail", "c": "pass"}, changes="d1"))
    (run,) = over_all(path).runs
    assert run.totals == {"pass": 2, "fail": 1, "crash": 0, "skip": 0, "error": 0}
    assert (run.source.short_commit, run.num_planned) == ("c0ffee1+", 3)


def test_a_case_with_two_verdicts_for_one_state_of_the_code_is_flaky(
    filled: Fill, make_run: MakeRun
) -> None:
    path = filled(
        *(
            make_run(number, {"a": word, "b": "pass"})
            for number, word in enumerate(["pass", "fail", "pass"])
        )
    )
    found = over_all(path)
    assert [case.key for case in found.flaky] == ["a"]
    flaky = found.flaky[0].flaky
    assert flaky is not None and (flaky.num_groups, flaky.num_mixed, flaky.num_runs) == (1, 1, 3)
    assert flaky.verdicts == {"fail": 1, "pass": 2} and flaky.share == 1.0


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"commit": "aaa"}, {"commit": "bbb"}),
        ({"commit": ""}, {"commit": ""}),
        ({"changes": ""}, {"changes": "d1"}),
        ({"variant": "torch 2.12"}, {"variant": "torch 2.13"}),
    ],
    ids=["another commit", "no commit known", "an edit not committed", "another version"],
)
def test_a_case_is_not_flaky_when_something_else_may_be_the_cause(
    filled: Fill, make_run: MakeRun, first: dict[str, str], second: dict[str, str]
) -> None:
    path = filled(make_run(1, {"a": "pass"}, **first), make_run(2, {"a": "fail"}, **second))
    assert over_all(path).flaky == ()


@pytest.mark.parametrize("other", [{"seed": 8}, {"device": "cuda"}], ids=["seed", "device"])
def test_another_seed_or_device_is_no_flake(
    filled: Fill, make_run: MakeRun, other: dict[str, object]
) -> None:
    failing = Entry("a", "a", "fail", 0.1, **({"seed": 7} | other))  # type: ignore[arg-type]
    path = filled(make_run(1, {"a": "pass"}), make_run(2, {"a": failing}))
    assert over_all(path).flaky == ()


def test_a_skip_is_no_verdict_to_differ_from(filled: Fill, make_run: MakeRun) -> None:
    path = filled(
        *(make_run(number, {"a": word}) for number, word in enumerate(["pass", "skip", "pass"]))
    )
    assert over_all(path).flaky == ()


def test_groups_of_runs_that_were_alike_are_counted_apart(filled: Fill, make_run: MakeRun) -> None:
    words = {"c1": ["pass", "crash"], "c2": ["pass", "pass", "pass"], "c3": ["fail"]}
    runs = [(commit, word) for commit, verdicts in words.items() for word in verdicts]
    path = filled(
        *(
            make_run(number, {"a": word}, commit=commit)
            for number, (commit, word) in enumerate(runs)
        )
    )
    (case,) = over_all(path).flaky
    assert case.flaky is not None and case.flaky.share == 0.5, "a run alone is no group"
    assert (case.flaky.num_runs, case.flaky.verdicts) == (5, {"crash": 1, "pass": 4})


def test_the_flakiest_case_comes_first(filled: Fill, make_run: MakeRun) -> None:
    runs = [
        make_run(
            2 * commit + turn,
            {"b": "fail" if turn else "pass", "a": "fail" if turn and not commit else "pass"},
            commit=f"c{commit}",
        )
        for commit in range(3)
        for turn in range(2)
    ]
    assert [case.key for case in over_all(filled(*runs)).flaky] == ["b", "a"]


def test_faults_are_followed_as_cases_are(filled: Fill, make_run: MakeRun) -> None:
    path = filled(
        make_run(1, {"a[x=1]": "pass"}, faults=(fault("kv.tail", "a[x=1]", True),)),
        make_run(2, {"a[x=1]": "pass"}),
        make_run(3, {}, faults=(fault("kv.tail", "a[x=1]", False),)),
    )
    found = trends_over([*path][::-1], "a")
    assert [(one.key, one.verdicts) for one in found.cases] == [
        ("a[x=1]", "pp."),
        ("a[x=1]!kv.tail", "y.n"),
    ]
    assert [(run.num_caught, len(run.faults)) for run in found.runs] == [(1, 1), (0, 0), (0, 1)]
    assert up_to(path, "run-0003").runs[0].run_id == "run-0001", (
        "a fault in common is something in common"
    )


def test_only_so_many_runs_are_looked_at(filled: Fill, make_run: MakeRun) -> None:
    path = filled(*(make_run(number, {"a": "pass"}) for number in range(9)))
    last, fourth = up_to(path, "run-0008", num_runs=3), up_to(path, "run-0004", num_runs=2)
    assert [run.run_id for run in last.runs] == ["run-0006", "run-0007", "run-0008"]
    assert [run.run_id for run in fourth.runs] == ["run-0003", "run-0004"]


def test_a_damaged_summary_is_reported_and_the_other_runs_are_read(
    filled: Fill, make_run: MakeRun
) -> None:
    path = filled(
        make_run(1, {"a": "pass"}), make_run(2, {"a": "pass"}), make_run(3, {"a": "pass"})
    )
    (path.root / "run-0002" / "summary.json").write_text('{"run_id": "run-0002", "source"')
    (path.root / "run-0003" / "summary.json").write_text('{"source": {}, "environment": []}')
    again = PastRuns(path.root)
    assert [run.run_id for run in again] == ["run-0001"]
    assert ["run-0003" in again.damaged[0], "run-0002" in again.damaged[1]] == [True, True]


def test_a_summary_says_all_that_a_run_entry_holds(filled: Fill, make_run: MakeRun) -> None:
    failing = Entry(
        "a", "a", "fail", 0.1, 3, "cuda", "NaN in live rows", ("finite",), ("kv.tail",), (1.0, 0.5)
    )
    run = make_run(
        1, {"a": failing, "b": "pass"}, changes="d1", faults=(fault("kv.tail", "a", True),)
    )
    (found,) = filled(run)
    assert found.entries == run.entries and found.source == run.source and found.totals["fail"] == 1
