"""What becomes of a sanitizer's report: the log of the case, a finding when it counts errors, and
never silence.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.cases import Case, Job
from harness.core.cause_codes import Code
from harness.core.errors import InputError
from harness.core.records import CaseResult, Verdict
from harness.run import sanitizer
from harness.run.children import Children
from harness.scenario.load import load_scenarios, shipped_directory
from harness.scenario.selection import select
from tests.transcripts import Approved
from tests.waiting import HANG_SECONDS

REPORT = """========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at merge_kernel+0x110
=========     by thread (0,0,0) in block (2,0,0)
========= ERROR SUMMARY: 3 errors
"""
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"


def result(verdict: Verdict = Verdict.PASS) -> CaseResult:
    return CaseResult(key="a", id="a", scenario="a", verdict=verdict)


def job(device: str = "cuda") -> Job:
    return Job(
        key="a", case=Case(id="a", scenario="a", system="kernel", op="write_kv"), device=device
    )


def test_errors_of_the_report_fail_a_case_that_passed_and_say_the_first(approved: Approved) -> None:
    judged = sanitizer.with_report(result(), "initcheck", REPORT)
    assert judged.verdict is Verdict.FAIL
    (finding,) = judged.findings
    assert (finding.oracle, finding.cause) == ("sanitizer", Code.SANITIZER)
    assert "3 errors" in finding.message
    approved(finding.message)
    assert judged.log == REPORT


def test_a_clean_report_leaves_the_verdict_and_stands_in_the_log() -> None:
    judged = sanitizer.with_report(result(), "memcheck", CLEAN)
    assert (judged.verdict, judged.findings, judged.log) == (Verdict.PASS, (), CLEAN)


def test_a_crash_stays_a_crash_with_the_report_beside_it() -> None:
    judged = sanitizer.with_report(result(Verdict.CRASH), "memcheck", REPORT)
    assert judged.verdict is Verdict.CRASH and len(judged.findings) == 1


def test_racecheck_sums_up_in_words_of_its_own() -> None:
    text = "========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)\n"
    assert sanitizer.with_report(result(), "racecheck", text).verdict is Verdict.FAIL


def test_a_report_without_a_summary_proves_nothing() -> None:
    judged = sanitizer.with_report(result(), "initcheck", "========= Error: Device not supported\n")
    assert judged.verdict is Verdict.ERROR and "left no summary" in judged.reason


def test_a_long_report_is_cut_from_the_front() -> None:
    judged = sanitizer.with_report(result(), "initcheck", "x" * 10_000 + REPORT)
    assert len(judged.log) == sanitizer.LOG_TAIL and judged.log.endswith("3 errors\n")


@pytest.mark.parametrize(
    ("tool", "jobs", "words"),
    [
        ("leakcheck", [job()], "unknown tool"),
        ("initcheck", [job(), job("cpu")], "a runs on the CPU; add --device cuda"),
    ],
)
def test_what_cannot_be_watched_is_refused_with_the_way_out(
    tool: str, jobs: list[Job], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        sanitizer.check(tool, jobs)


TOOL = """#!/bin/sh
# A stand-in for compute-sanitizer: it prints a banner, runs the program, and then ends its report.
echo run >> "$FAKE_RUNS"; echo "$1 $2" > "$FAKE_SEEN"; echo "a banner"; echo "$@" > "$FAKE_SEEN.all"
while [ "${1#--}" != "$1" ]; do [ "$1" = --log-file ] && report=$2; shift 2; done
"$@"
code=$?
printf '%s' "$FAKE_REPORT" > "$report"
exit $code
"""


@pytest.fixture
def fake_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(TOOL)
    tool.chmod(0o755)
    monkeypatch.setattr(sanitizer, "find", lambda: str(tool))
    monkeypatch.setenv("FAKE_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("FAKE_SEEN", str(tmp_path / "seen"))
    monkeypatch.setenv("FAKE_REPORT", REPORT)


def watched() -> Job:
    case = select(load_scenarios(shipped_directory()), ["merge-kernel"])[0]
    return Job(key="a", case=case, timeout_seconds=HANG_SECONDS)


def test_the_watched_process_answers_and_the_report_is_read_when_it_is_gone(
    fake_tool: None, tmp_path: Path
) -> None:
    (judged,) = sanitizer.run([watched()], "initcheck", Children())
    assert (judged.verdict, judged.log) == (Verdict.FAIL, REPORT)
    assert judged.looked_at and judged.findings[-1].oracle == "sanitizer"
    assert (tmp_path / "seen").read_text() == "--tool initcheck\n"


def test_memcheck_counts_no_failed_call_of_the_cuda_api(fake_tool: None, tmp_path: Path) -> None:
    sanitizer.run([watched()], "memcheck", Children())
    assert "--report-api-errors no" in (tmp_path / "seen.all").read_text()


@pytest.mark.parametrize(
    ("does", "seconds", "words"),
    [("exit 9", HANG_SECONDS, "it ended with code 9"), ("sleep 3600", 0.02, "it ran out of time")],
)
def test_a_watched_process_without_an_answer_is_a_crash(
    fake_tool: None, tmp_path: Path, does: str, seconds: float, words: str
) -> None:
    (tmp_path / "compute-sanitizer").write_text(f"#!/bin/sh\n{does}\n")
    (judged,) = sanitizer.run(
        [watched().model_copy(update={"timeout_seconds": seconds})], "memcheck", Children()
    )
    assert judged.verdict is Verdict.CRASH
    assert words in judged.reason


def watched_by_pool(count: int, watchers: int) -> list[CaseResult]:
    jobs = [watched().model_copy(update={"key": str(number)}) for number in range(count)]
    with sanitizer.SanitizedPool("memcheck", watchers) as pool:
        return sorted(pool.run(jobs), key=lambda one: one.key)


def test_a_clean_batch_is_one_child_of_several_cases(
    fake_tool: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_REPORT", CLEAN)
    results = watched_by_pool(3, 1)
    assert [one.verdict for one in results] == [Verdict.PASS] * 3
    assert len((tmp_path / "runs").read_text().split()) == 1


@pytest.mark.nightly
def test_each_case_of_a_batch_with_errors_gets_a_report_of_its_own(
    fake_tool: None, tmp_path: Path
) -> None:
    results = watched_by_pool(2, 1)
    assert [(one.verdict, one.findings[-1].oracle) for one in results] == [
        (Verdict.FAIL, "sanitizer")
    ] * 2
    assert len((tmp_path / "runs").read_text().split()) == 3
