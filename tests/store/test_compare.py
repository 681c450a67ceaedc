"""What changed between two runs, and which two runs are meant."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.cases import Case, Job
from harness.core.errors import InputError
from harness.core.fault_outcomes import WRONG_BLAME
from harness.core.findings import Finding
from harness.core.records import Blame, CaseResult, Verdict
from harness.report.run_view import RunView
from harness.report.write import write_reports
from harness.store.history.compare import Change, choose, compare, last_green, previous_of
from harness.store.history.entry import Entry, PastRuns, RunEntry, entry_of
from harness.store.run_folder import RunStore
from tests.transcripts import Approved

from .entries import fault

MakeRun = Callable[..., RunEntry]
Fill = Callable[..., PastRuns]


def keys(changes: tuple[Change, ...]) -> list[str]:
    return [change.key for change in changes]


def test_each_case_is_where_it_belongs(make_run: MakeRun) -> None:
    words = {
        "good": ("pass", "pass"),
        "breaks": ("pass", "fail"),
        "dies": ("pass", "crash"),
        "unjudged": ("pass", "error"),
        "was skipped": ("skip", "fail"),
        "mended": ("crash", "pass"),
        "still": ("fail", "fail"),
        "worse": ("fail", "crash"),
        "hidden": ("fail", "skip"),
        "gone quiet": ("pass", "skip"),
        "runs now": ("skip", "pass"),
    }
    before = make_run(1, {key: pair[0] for key, pair in words.items()} | {"only before": "fail"})
    after = make_run(
        2, {key: pair[1] for key, pair in words.items()} | {"new bad": "fail", "new good": "pass"}
    )
    found = compare(before, after)
    assert keys(found.new_failures) == ["breaks", "dies", "unjudged", "was skipped", "new bad"]
    assert keys(found.fixed) == ["mended"]
    assert keys(found.other_failures) == ["worse"]
    assert keys(found.not_judged) == ["hidden", "gone quiet"], "a skip mends nothing"
    assert (len(found.same_failures), found.num_new, found.num_gone, found.num_shared) == (
        1,
        2,
        1,
        len(words),
    )
    assert (
        found.is_like_with_like
        and not compare(before, replace(after, variant="w")).is_like_with_like
    )


@pytest.mark.parametrize(
    ("other", "is_other"),
    [
        ({}, False),
        ({"oracles": ("sentinel",)}, True),
        ({"blamed": ("lse",)}, True),
        ({"blamed": ()}, False),
        ({"note": "other words"}, False),
    ],
)
def test_a_failure_is_another_one_when_another_oracle_or_site_is(
    make_run: MakeRun, other: dict[str, tuple[str, ...]], is_other: bool
) -> None:
    failing = Entry("a", "a", "fail", 0.1, note="NaN", oracles=("finite",), blamed=("kv.tail",))
    found = compare(make_run(1, {"a": failing}), make_run(2, {"a": replace(failing, **other)}))  # type: ignore[arg-type]
    assert bool(found.other_failures) is is_other and len(found.same_failures) == int(not is_other)


def test_a_fault_that_is_no_longer_caught_is_a_new_failure(
    make_run: MakeRun,
) -> None:
    caught = fault("kv.tail", "a[x=1]", True, oracles=("finite",))
    missed = fault("kv.tail", "a[x=1]", False, note="the case ended in pass")
    before, after = make_run(1, {}, faults=(caught,)), make_run(2, {}, faults=(missed,))
    assert keys(compare(before, after).new_failures) == ["a[x=1]!kv.tail"]
    assert keys(compare(after, before).fixed) == ["a[x=1]!kv.tail"]


def test_a_fault_that_is_blamed_otherwise_than_before_is_a_new_failure(make_run: MakeRun) -> None:
    caught = fault("kv.tail", "a[x=1]", True, oracles=("finite",))
    before, after = (
        make_run(1, {}, faults=(caught,)),
        make_run(2, {}, faults=(replace(caught, verdict=WRONG_BLAME),)),
    )
    found = compare(before, after)
    assert keys(found.new_failures) == ["a[x=1]!kv.tail"] and found.new_failures[0].after.is_fault


def test_accuracy_and_time_are_told_with_the_largest_change_first(make_run: MakeRun) -> None:
    def measured(key: str, seconds: float, *accuracies: float) -> Entry:
        return Entry(key, "m", "pass", seconds, accuracies=accuracies)

    before = make_run(
        1,
        {
            "m1": measured("m1", 1.0, 1.0, 0.9),
            "m2": measured("m2", 1.0, 1.0),
            "m3": measured("m3", 9.0),
        },
    )
    after = make_run(
        2,
        {
            "m1": measured("m1", 1.4, 0.95),
            "m2": measured("m2", 2.0, 0.25),
            "m3": measured("m3", 3.0),
        },
    )
    found = compare(before, after)
    assert [(change.key, change.gain) for change in found.accuracy] == [("m2", -0.75), ("m1", 0.05)]
    assert keys(found.time) == ["m3", "m2"], "0.4 s is the machine's mood"
    assert keys(compare(after, before).accuracy) == ["m1", "m2"]


def test_names_mean_runs_of_the_history(filled: Fill, make_run: MakeRun, tmp_path: Path) -> None:
    path = filled(
        make_run(1, {"a": "pass"}, branch="main"),
        make_run(2, {"a": "fail"}, branch="topic"),
        make_run(3, {"b": "pass"}),
        make_run(4, {"a": "pass"}),
    )

    def meant(*names: str, branch: str = "") -> list[str]:
        return [run.run_id for run in choose(names, path, branch=branch)]

    assert meant() == ["run-0002", "run-0004"], "run 3 has no case in common with the latest"
    assert meant("previous", "latest") == meant("latest") == meant()
    assert meant(branch="main") == ["run-0001", "run-0004"]
    assert meant("run-0002") == ["run-0001", "run-0002"]
    assert meant("run-0004", "run-0001") == ["run-0004", "run-0001"]
    for names, told in (
        (("previous", "run-0003"), "has no run before run-0003"),
        (("run-0001", "previous"), "write it first"),
        (("latest", "latest"), "are the same run, run-0004"),
        (("run-0001", "run-9"), "no run 'run-9'"),
        (("run-0010", "latest"), "did you mean 'run-0"),
    ):
        with pytest.raises(InputError, match=told):
            meant(*names)


def store_of(root: Path, **verdicts: Verdict) -> RunStore:
    jobs = [
        Job(key=key, case=Case(id=key, scenario="a", system="kernel", op="write_kv", seed=5))
        for key in verdicts
    ]
    store = RunStore.create(root, jobs, command="mla-harness run")
    for key, verdict in verdicts.items():
        finding = Finding(oracle="finite", message="NaN\nin live rows")
        findings = (finding, finding) if verdict is Verdict.FAIL else ()
        store.add(
            CaseResult(
                key=key, id=key, scenario="a", verdict=verdict, seconds=0.5, findings=findings
            )
        )
    return store


def test_run_folders_are_compared_without_any_history(tmp_path: Path, approved: Approved) -> None:
    first = store_of(tmp_path, a=Verdict.PASS)
    second = store_of(tmp_path, a=Verdict.FAIL)
    before, after = choose([str(first.path), second.path.name], PastRuns(tmp_path))
    assert keys(compare(before, after).new_failures) == ["a"]
    with approved.raises(InputError):
        choose(["previous", str(second.path)], PastRuns(tmp_path))


def test_an_entry_holds_what_the_folder_says_and_leaves_out_what_never_ran(
    tmp_path: Path, approved: Approved
) -> None:
    store = store_of(tmp_path, a=Verdict.FAIL)
    never_ran = Job(key="b", case=Case(id="b", scenario="a", system="kernel", op="write_kv"))
    store.plan = store.plan.model_copy(update={"jobs": (*store.plan.jobs, never_ran)})
    store.add_blame("a", Blame(sites=("kv.tail",)))
    entry = entry_of(store)
    (case,) = entry.cases
    assert case.oracles == ("finite",) and case.blamed == ("kv.tail",) and case.seed == 5
    approved(case.note)
    assert entry.num_planned == 2 and Path(entry.folder).is_absolute()


def test_the_variant_of_a_run_is_its_options_and_versions(tmp_path: Path) -> None:
    store = store_of(tmp_path, a=Verdict.PASS)
    variant = entry_of(store).variant
    assert variant == entry_of(RunStore.open(store.path)).variant
    store.note_environment({"torch": "2.12"})
    assert entry_of(store).variant != variant
    store.note_environment({"torch": "2.13", "cluster": "Ray: 2 nodes"})
    elsewhere = entry_of(store).variant
    store.note_environment({"torch": "2.13", "cluster": ""})
    assert entry_of(store).variant == elsewhere, "where it ran decides nothing"


def test_the_run_before_is_found_for_a_run_that_is_not_in_the_folder(
    filled: Fill, make_run: MakeRun
) -> None:
    path = filled(make_run(1, {"a": "pass"}), make_run(5, {"a": "pass"}))
    found = previous_of(make_run(3, {"a": "fail"}), path)
    assert found is not None and found.run_id == "run-0001"
    assert previous_of(make_run(3, {"z": "fail"}), path) is None


def test_a_self_test_between_two_runs_is_not_the_run_before(
    filled: Fill, make_run: MakeRun
) -> None:
    injected = (fault("kv.tail", "a", True),)
    path = filled(
        make_run(1, {"a": "pass", "b": "pass"}),
        make_run(2, {"a": "pass"}, faults=injected),
        make_run(3, {"a": "pass", "b": "fail"}),
        make_run(4, {"a": "pass"}, faults=injected),
    )

    def before(number: int, **more: tuple[Entry, ...]) -> str:
        found = previous_of(make_run(number, {"a": "pass"}, **more), path)
        return found.run_id if found else ""

    assert before(3) == "run-0001" and before(4, faults=injected) == "run-0002"
    # Without a run of its kind any is better than none.
    assert before(2, faults=injected) == "run-0001"


def test_cases_that_were_good_and_no_longer_run_are_lost_by_reason(make_run: MakeRun) -> None:
    caught = fault("kv.tail", "a[x=1]", True)
    before = make_run(
        1,
        {"a": "pass", "b": "pass", "c": "pass", "d": "pass", "bad": "fail", "s": "skip"},
        faults=(caught,),
    )
    skipped = {
        key: Entry(key, key, "skip", 0.0, note="needs CUDA") for key in ("a", "b", "bad", "s")
    }
    after = make_run(2, {**skipped, "d": "pass"})
    gone = "not in the newer run: mla-harness run"
    assert compare(before, after).lost == {
        "needs CUDA": ("a", "b"),
        gone: ("c",),
    }, "a run without faults injects none"
    other = fault("lse", "a[x=1]", True)
    more = {**after.entries, other.key: other}
    assert compare(before, replace(after, entries=more)).lost[gone] == ("c", "a[x=1]!kv.tail")
    assert compare(before, before).lost == {} and compare(after, before).lost == {}


@pytest.mark.parametrize("idle", ["skip", "error"])
def test_a_run_in_which_nothing_ran_is_neither_latest_nor_previous(
    filled: Fill, make_run: MakeRun, tmp_path: Path, idle: str
) -> None:
    path = filled(
        make_run(1, {"a": "pass"}),
        make_run(2, {"a": idle}),
        make_run(3, {"a": "fail"}),
        make_run(4, {"a": idle}),
    )
    assert [run.run_id for run in choose([], path)] == ["run-0001", "run-0003"]
    assert [run.run_id for run in choose(["run-0004"], path)] == ["run-0003", "run-0004"]


def test_a_run_of_faults_alone_can_be_latest(
    filled: Fill, make_run: MakeRun, tmp_path: Path
) -> None:
    caught = fault("kv.tail", "a[x=1]", True)
    path = filled(make_run(1, {"a": "pass"}, faults=(caught,)), make_run(2, {}, faults=(caught,)))
    assert [run.run_id for run in choose([], path)] == ["run-0001", "run-0002"]


def test_folders_in_which_nothing_ran_are_not_latest(tmp_path: Path, approved: Approved) -> None:
    idle = store_of(tmp_path, a=Verdict.SKIP)
    write_reports(RunView(idle))
    with approved.raises(InputError):
        choose([str(idle.path), "latest"], PastRuns(tmp_path))
    judged, later = store_of(tmp_path, a=Verdict.PASS), store_of(tmp_path, a=Verdict.SKIP)
    write_reports(RunView(judged)), write_reports(RunView(later))
    _, after = choose([str(idle.path), "latest"], PastRuns(tmp_path))
    assert after.run_id == judged.plan.run_id


def test_the_last_green_run_ran_to_its_end_without_a_failure(
    filled: Fill, make_run: MakeRun
) -> None:
    counted = ("fail", "crash", "missed")
    path = filled(
        make_run(1, {"a": "pass", "b": "known"}),
        make_run(2, {"a": "pass"}, faults=(fault("lse", "a", False),)),
        make_run(4, {"a": "pass", "b": "fail"}),
        make_run(5, {"z": "pass"}),
    )
    now = make_run(6, {"a": "fail", "b": "fail"})
    found = last_green(now, path, counted)
    assert found is not None and found.run_id == "run-0001"
    assert last_green(make_run(1, {"a": "fail"}), path, counted) is None
    file = path.root / "run-0001" / "summary.json"
    summary = json.loads(file.read_text())
    summary["cases"].append({**summary["cases"][0], "id": "c", "verdict": "not-run"})
    file.write_text(json.dumps(summary))
    assert last_green(now, PastRuns(path.root), counted) is None, (
        "a run that was stopped is not green"
    )
