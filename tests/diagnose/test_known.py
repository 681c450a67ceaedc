"""Known failures: expected while a release has them, a failure of the run when they are gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.cases import Case, Job, KnownFailure
from harness.core.errors import InputError
from harness.core.records import CaseResult, Finding, Verdict
from harness.diagnose.perform import KNOWN_ORACLE, exit_code, settled
from harness.scenario.expand import expand
from harness.scenario.load import load_scenario, load_scenarios

ENTRY = KnownFailure(issue="vllm-project/vllm#43961", engine="vllm", versions=">=0.21,<0.23")
BROKEN = (Finding(oracle="finite", message="NaN in live rows of out"),)


def job(*known: KnownFailure, fault: str | None = None) -> Job:
    case = Case(id="a[b=c]", scenario="a", system="kernel", op="write_kv", params={}, known=known)
    return Job(key=case.id, case=case, fault=fault)


def result(verdict: Verdict, asked: Job) -> CaseResult:
    findings = BROKEN if verdict is Verdict.FAIL else ()
    return CaseResult.of(asked, verdict, reason="NaN in live rows of out" if findings else "", findings=findings)


@pytest.mark.parametrize("version", ["0.21.0", "0.22.1", "0.22.1+cu130", "0.22.0rc1"])
def test_the_expected_failure_is_known_keeps_its_findings_and_fails_no_run(version: str) -> None:
    asked = job(ENTRY)
    found = settled(asked, result(Verdict.FAIL, asked), {"vllm": version})
    assert found.verdict is Verdict.KNOWN
    assert found.findings == BROKEN
    assert "vllm-project/vllm#43961" in found.reason and "NaN in live rows" in found.reason
    assert exit_code([found]) == 0


def test_a_case_that_passes_although_it_is_known_to_fail_is_a_failure_that_says_so() -> None:
    asked = job(ENTRY)
    found = settled(asked, result(Verdict.PASS, asked), {"vllm": "0.22.1"})
    assert found.verdict is Verdict.FAIL
    assert [finding.oracle for finding in found.findings] == [KNOWN_ORACLE]
    assert "vllm-project/vllm#43961" in found.reason and "0.22.1" in found.reason
    assert exit_code([found]) == 1


@pytest.mark.parametrize("versions", [{"vllm": "0.23.0"}, {"vllm": "0.20.2"}, {"other": "0.22.1"}, {}])
@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.PASS])
def test_releases_that_the_entry_does_not_name_are_judged_as_ever(versions: dict[str, str], verdict: Verdict) -> None:
    asked = job(ENTRY)
    assert settled(asked, result(verdict, asked), versions) == result(verdict, asked)


def test_another_failure_than_the_expected_one_stays_a_failure() -> None:
    asked = job(ENTRY)
    for verdict in (Verdict.CRASH, Verdict.ERROR, Verdict.SKIP):
        assert settled(asked, result(verdict, asked), {"vllm": "0.22.1"}).verdict is verdict
    crashing = job(ENTRY.model_copy(update={"expect": ("fail", "crash")}))
    assert settled(crashing, result(Verdict.CRASH, crashing), {"vllm": "0.22.1"}).verdict is Verdict.KNOWN


def test_with_an_injected_bug_a_case_is_judged_by_that_bug_alone() -> None:
    asked = job(ENTRY, fault="write_kv.slot-zero-for-padding")
    assert settled(asked, result(Verdict.PASS, asked), {"vllm": "0.22.1"}).verdict is Verdict.PASS


def test_a_scenario_hands_an_entry_to_the_points_that_it_names() -> None:
    scenario = next(one for one in load_scenarios() if one.name == "vllm-kv-cache-stale")
    known = {case.id: [entry.issue for entry in case.known] for case in expand(scenario)}
    assert known == {
        "vllm-kv-cache-stale[backend=FLASHMLA]": [],
        "vllm-kv-cache-stale[backend=FLASH_ATTN_MLA]": ["vllm-project/vllm#43961"],
        "vllm-kv-cache-stale[backend=TRITON_MLA]": [],
    }


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{issue: 43961, engine: vllm, versions: '<0.23'}", "expected text"),
        ("{issue: vllm-project/vllm#43961, engine: vlm, versions: '<0.23'}", "unknown engine 'vlm'"),
        ("{issue: vllm-project/vllm#43961, engine: vllm, versions: 'up to 0.22'}", "names no versions"),
        ("{issue: vllm-project/vllm#43961, engine: vllm, versions: '<0.23', on: {kv: x}}", "is no axis of the matrix"),
        ("{issue: vllm-project/vllm#43961, engine: vllm, versions: '<0.23', expect: [skip]}", "unknown value 'skip'"),
    ],
)
def test_a_wrong_entry_is_refused_with_its_place(tmp_path: Path, entry: str, message: str) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(f"name: wrong\nsummary: s\nsystem: kernel\nop: write_kv\nknown:\n  - {entry}\n", encoding="utf-8")
    with pytest.raises(InputError, match=message) as caught:
        load_scenario(path)
    assert str(caught.value).startswith(f"{path}:6:")
