"""The canonical lines of a run: the same for the same findings, and different for any other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from harness.core.cases import Case, Job
from harness.core.findings import Finding
from harness.core.records import Blame, CaseResult, FaultResult, Verdict
from harness.store.run_folder import RunStore
from harness.store.summary import canonical

FINDING = Finding(
    oracle="finite", site="kv.tail", tensor="out", where="row 1", bits="0x7fc00001", message="NaN"
)


def result(key: str, *findings: Finding, seconds: float = 1.0, log: str = "") -> CaseResult:
    verdict = Verdict.FAIL if findings else Verdict.PASS
    return CaseResult(
        key=key,
        id=key,
        scenario="stub",
        verdict=verdict,
        findings=findings,
        seconds=seconds,
        log=log,
        reason=findings[0].message if findings else "",
    )


def store(path: Path, results: Sequence[CaseResult], how: str = "alone") -> RunStore:
    jobs = [
        Job(key=one.key, case=Case(id=one.key, scenario="stub", system="kernel", op="write_kv"))
        for one in results
    ]
    made = RunStore.create(path, sorted(jobs, key=lambda job: len(job.key)), command="stub")
    for one in results:
        made.add(one)
        if one.findings:
            made.add_blame(one.key, Blame(sites=("kv.tail",), how=how))
    return made


def test_times_logs_machines_and_order_do_not_show(tmp_path: Path) -> None:
    one = store(tmp_path, [result("a"), result("bb", FINDING)])
    lost = result("bb", FINDING, seconds=9.0, log="pid 17").model_copy(
        update={"lost_nodes": ("10.0.0.2 (abcd)",)}
    )
    two = store(tmp_path, [lost, result("a", seconds=0.1)])
    two.add_seconds(5.0)
    assert canonical(one) == canonical(two)
    assert [json.loads(line)["id"] for line in canonical(one).splitlines()] == ["a", "bb"]


def test_whatever_was_found_shows(tmp_path: Path) -> None:
    moved = FINDING.model_copy(update={"where": "row 2"})
    texts = {
        canonical(store(tmp_path, results, how))
        for results, how in (
            ([result("a"), result("bb", FINDING)], "alone"),
            ([result("a"), result("bb", moved)], "alone"),
            ([result("a"), result("bb", FINDING, moved)], "alone"),
            ([result("a"), result("bb", moved, FINDING)], "alone"),
            ([result("a"), result("bb", FINDING)], "together"),
            ([result("a"), result("bb")], "alone"),
            ([result("a")], "alone"),
        )
    }
    assert len(texts) == 7


def test_faults_that_were_put_back_show_too(tmp_path: Path) -> None:
    made = store(tmp_path, [result("a")])
    before = canonical(made)
    made.add_fault(
        FaultResult(
            fault="f", scenario="stub", case="a", caught=True, expected_by=("finite",), seconds=3.0
        )
    )
    added = set(canonical(made).splitlines()) - set(before.splitlines())
    assert [json.loads(line)["caught"] for line in added] == [True]
