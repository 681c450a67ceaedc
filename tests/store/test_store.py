"""The run directory survives kills, resumes, and refuses what it cannot understand."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness.core.cases import Case, Job
from harness.core.errors import InputError
from harness.core.findings import Finding
from harness.core.records import Blame, CaseResult, FaultResult, Verdict
from harness.store.run_folder import RunStore, find_run, new_run_id
from harness.store.summary import summarise, to_json
from tests.transcripts import Approved


def job(name: str) -> Job:
    return Job(
        key=name,
        case=Case(
            id=name,
            scenario="stub",
            system="kernel",
            op="write_kv",
            refs=("vllm-project/vllm#36540",),
        ),
    )


def result(name: str, verdict: Verdict = Verdict.PASS, **more: object) -> CaseResult:
    return CaseResult.model_validate(
        {"key": name, "id": name, "scenario": "stub", "verdict": verdict, **more}
    )


def fresh(tmp_path: Path, *names: str) -> RunStore:
    return RunStore.create(
        tmp_path, [job(name) for name in names], command="mla-harness run", options={"seed": 3}
    )


def test_folders_of_runs_sort_by_time_and_differ(tmp_path: Path) -> None:
    early, late = (new_run_id(datetime(2026, 1, day, tzinfo=UTC)) for day in (1, 2))
    assert early < late and early.startswith("20260101T000000Z-")
    names = [fresh(tmp_path).path.name for _ in range(20)]
    assert names == sorted(set(names))


def test_a_run_reads_back_equal(tmp_path: Path) -> None:
    store = fresh(tmp_path, "a", "b")
    finding = Finding(oracle="finite", bits="0x7fc00001", message="NaN")
    store.add(result("a", Verdict.FAIL, findings=(finding,), looked_at={"finite": 3}))
    store.add_blame("a", Blame(sites=("output",), how="alone", trials={"nothing": "pass"}))
    fault = FaultResult(fault="f", scenario="stub", case="a", caught=True, expected_by=("finite",))
    store.add_fault(fault)
    store.note_environment({"torch": "2.13.0"})
    again = RunStore.open(store.path)
    assert again.plan == store.plan
    assert again.results()[0].findings == (finding,)
    assert again.blames()["a"].sites == ("output",)
    assert again.faults() == [fault]


def test_a_command_with_a_path_whose_bytes_are_no_text_reads_back_equal(tmp_path: Path) -> None:
    command = "mla-harness run --out o\udcff"
    store = RunStore.create(tmp_path, (), command=command)
    assert RunStore.open(store.path).plan.command == command


def test_results_come_in_the_order_of_the_plan_and_what_never_ran_is_marked(tmp_path: Path) -> None:
    store = fresh(tmp_path, "a", "b", "c")
    store.add(result("c"))
    store.add(result("a"))
    found = store.results()
    assert [entry.key for entry in found] == ["a", "b", "c"]
    assert [entry.verdict for entry in found] == [Verdict.PASS, Verdict.NOT_RUN, Verdict.PASS]
    assert [left.key for left in store.unfinished()] == ["b"]


def test_a_line_torn_by_a_kill_is_run_again_and_the_next_line_is_whole(tmp_path: Path) -> None:
    store = fresh(tmp_path, "a", "b")
    store.add(result("a"))
    with (store.path / "results.jsonl").open("a") as stream:
        stream.write('{"schema_version": 2, "key": "b", "verd')
    assert [left.key for left in store.unfinished()] == ["b"]
    store.add(result("b"))
    assert RunStore.open(store.path).unfinished() == []


def test_of_two_results_for_one_job_the_later_holds(tmp_path: Path) -> None:
    store = fresh(tmp_path, "a")
    store.add(result("a", Verdict.FAIL))
    store.add(result("a", Verdict.PASS))
    assert [entry.verdict for entry in store.results()] == [Verdict.PASS]


@pytest.mark.parametrize("name", ["run.json", "results.jsonl", "faults.jsonl", "blame.jsonl"])
def test_a_newer_schema_is_refused_in_one_sentence(tmp_path: Path, name: str) -> None:
    store = fresh(tmp_path, "a")
    (store.path / name).write_text(json.dumps({"schema_version": 99, "unheard": "of"}) + "\n")
    with pytest.raises(InputError, match="schema 99") as caught:
        again = RunStore.open(store.path)
        again.results(), again.faults(), again.blames()
    assert name in str(caught.value) and "\n" not in str(caught.value)


def test_an_older_schema_is_refused_in_one_sentence_that_names_its_version(tmp_path: Path) -> None:
    store = fresh(tmp_path, "a")
    store.note_environment({"harness": "0.1.0"})
    file = store.path / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"schema_version": 1}))
    with pytest.raises(InputError) as caught:
        RunStore.open(store.path)
    told = "written by version 0.1.0 of mla-harness (schema 1, this one reads 2); run again"
    assert str(caught.value) == f"{file}: {told}"


def test_an_older_file_that_says_no_version_of_its_writer_is_refused_too(tmp_path: Path) -> None:
    store = fresh(tmp_path, "a")
    (store.path / "results.jsonl").write_text('{"schema_version": 1, "key": "a"}\n')
    told = r"results\.jsonl: written by an older version of mla-harness \(schema 1, .*; run again$"
    with pytest.raises(InputError, match=told):
        store.results()


def plan(**changes: object) -> str:
    """A plan of no case, with changes."""
    whole = {"schema_version": 2, "run_id": "r", "started": "", "command": "x", "jobs": []}
    return json.dumps(whole | changes)


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("run.json", "[]", "no schema_version"),
        ("run.json", plan(options={"plugins": 5}), "damaged: options.plugins"),
        ("run.json", plan(environment={"gpus": None}), "damaged: environment.gpus"),
        ("run.json", plan(environment={"variables": [1]}), "damaged: environment.variables"),
        ("run.json", plan(jobs=[{"key": "a", "case": {"system": None}}]), "damaged: "),
        ("run.json", "{", "cannot be read"),
        ("run.json", '{"schema_version": 2}', "damaged: run_id"),
        ("results.jsonl", '{"schema_version": 2, "key": 5}\n', "damaged"),
        ("results.jsonl", "null\n", "no schema_version"),
    ],
)
def test_a_damaged_run_is_refused_naming_the_file(
    tmp_path: Path, name: str, content: str, what: str
) -> None:
    store = fresh(tmp_path, "a")
    (store.path / name).write_text(content)
    with pytest.raises(InputError, match=what) as caught:
        RunStore.open(store.path).results()
    assert name in str(caught.value)


def test_a_run_is_found_by_path_by_id_and_as_the_latest(tmp_path: Path, approved: Approved) -> None:
    first, second = fresh(tmp_path, "a"), fresh(tmp_path, "a")
    latest = max(first.path, second.path)
    assert find_run(str(first.path), tmp_path) == first.path
    assert find_run(second.plan.run_id, tmp_path) == second.path
    assert find_run("latest", tmp_path) == latest
    with pytest.raises(InputError, match=f"no run 'nonsense'.*{latest.name}"):
        find_run("nonsense", tmp_path)
    with approved.raises(InputError):
        find_run("latest", tmp_path / "empty")


def test_an_output_folder_that_cannot_be_made_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be created"):
        fresh(tmp_path / "file", "a")


def test_the_summary_has_exactly_the_documented_fields(tmp_path: Path) -> None:
    store = fresh(tmp_path, "a", "b")
    finding = Finding(
        oracle="finite", site="output", tensor="out", where="row 1", bits="0x1", message="NaN"
    )
    store.add(
        result(
            "a", Verdict.FAIL, findings=(finding,), refs=("vllm-project/vllm#36540",), log="private"
        )
    )
    store.add(result("b", Verdict.SKIP, reason="no GPU"))
    store.add_fault(
        FaultResult(
            fault="f", scenario="s", case="a", caught=False, expected_by=("finite",), seconds=1.5
        )
    )
    store.note_environment({"torch": "2.13.0"})
    store.add_seconds(2.5)
    summary = summarise(store)
    assert list(summary) == [
        *("schema_version", "run_id", "started", "seconds", "environment", "source"),
        *("totals", "cases", "faults", "coverage", "accuracy"),
    ]
    assert summary["totals"] == {"pass": 0, "fail": 1, "crash": 0, "skip": 1, "error": 0}
    assert list(summary["cases"][0]) == [
        *(
            "id",
            "scenario",
            "refs",
            "verdict",
            "seconds",
            "reason",
            "cause",
            "findings",
            "seed",
            "device",
            "blamed",
        )
    ]
    assert summary["cases"][0]["findings"] == [
        {
            "oracle": "finite",
            "site": "output",
            "tensor": "out",
            "where": "row 1",
            "bits": "0x1",
            "message": "NaN",
            "cause": "",
            "error": "",
            "kernel": "",
            "at": "",
            "excess": None,
        }
    ]
    assert summary["faults"] == [
        {
            "fault": "f",
            "scenario": "s",
            "case": "a",
            "seen": False,
            "caught": False,
            "by": [],
            "blamed": [],
            "seconds": 1.5,
            "reason": "",
        }
    ]
    assert summary["accuracy"] == [] and summary["seconds"] == 2.5
    assert summary["environment"]["torch"] == "2.13.0"
    assert json.loads(to_json(summary)) == summary


def test_json_with_a_nan_is_never_written(tmp_path: Path) -> None:
    store = fresh(tmp_path, "a")
    with pytest.raises(ValueError, match="JSON"):
        store.add(result("a", seconds=float("nan")))
    assert store.finished() == {}


def test_the_folder_of_a_case_has_a_name_that_a_file_system_takes(tmp_path: Path) -> None:
    def folder(name: str) -> Path:
        case = Case(id=name, scenario="stub", system="vllm", params={})
        return Path(fresh(tmp_path).placed(Job(key=name, case=case)).directory or "")

    assert folder("stub[a=1,b=x]").name == "stub-a=1-b=x"
    long = [folder(f"stub[{'option=value,' * 40}last={end}]") for end in "ab"]
    assert long[0].name != long[1].name
    for one in long:
        one.mkdir(parents=True)
