"""The record of real engines has a row for each case and each injected bug, as the run says it."""

from __future__ import annotations

from pathlib import Path

from benchmarks import real_engine_record as record
from harness.core.cases import Case, Job
from harness.core.records import CaseResult, FaultResult, Finding, Verdict
from harness.store.run_folder import RunStore


def job(name: str) -> Job:
    return Job(key=name, case=Case(id=name, scenario="stub", system="kernel", op="write_kv"))


def test_a_wrong_case_and_a_missed_bug_are_not_told_as_right_ones(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, [job("a"), job("b"), job("c")], command="mla-harness run")
    store.note_environment({"cpu": "AMD EPYC", "num_cores": 2, "engines": {"vllm": "0.32.0"}})
    wrong = (Finding(oracle="reference", message=""), Finding(oracle="answers", message=""))
    for name, verdict, more in (
        ("a", Verdict.PASS, {}),
        ("b", Verdict.KNOWN, {"findings": wrong}),
        ("c", Verdict.SKIP, {"reason": "no engine"}),
    ):
        store.add(CaseResult(key=name, id=name, scenario="stub", verdict=verdict, **more))
    for fault, caught, by, reason in (("f", True, ("answers",), ""), ("g", False, (), "unseen")):
        store.add_fault(
            FaultResult(
                fault=fault,
                scenario="stub",
                case="a",
                seen=caught,
                caught=caught,
                by=by,
                expected_by=("answers",),
                reason=reason,
            )
        )
    found = list(record.rows(RunStore.open(store.path)))
    assert {row[:2] for row in found} == {("vllm 0.32.0", "AMD EPYC, 2 cores")}
    assert [row[2:6] for row in found] == [
        ("a", "none", "pass", ""),
        ("b", "none", "known", "answers, reference"),
        ("c", "none", "skip", "no engine"),
        ("a", "f", "caught", "answers"),
        ("a", "g", "missed", "unseen"),
    ]
