"""Known failures: expected while a release has them, a failure of the run when they are gone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from harness.core.cases import Case, Job, KnownFailure
from harness.core.errors import InputError
from harness.core.findings import Finding
from harness.core.records import CaseResult, Verdict
from harness.diagnose.run_jobs import KNOWN_ORACLE, apply_known, exit_code, quarantined, run_jobs
from harness.ops.write_kv.params import WriteKvParams
from harness.report.progress import LiveProgress
from harness.run.environment import Environment
from harness.run.pool import JobPool
from harness.scenario.expand import expand
from harness.scenario.load import load_scenario, load_scenarios
from harness.store.run_folder import RunStore
from tests.transcripts import Approved

ENTRY = KnownFailure(issue="vllm-project/vllm#43961", engine="vllm", versions=">=0.21,<0.23")
BROKEN = (Finding(oracle="finite", message="NaN in live rows of out"),)


def job(*known: KnownFailure, fault: str | None = None) -> Job:
    case = Case(id="a[b=c]", scenario="a", system="kernel", op="write_kv", params={}, known=known)
    return Job(key=case.id, case=case, fault=fault)


def result(verdict: Verdict, asked: Job) -> CaseResult:
    findings = BROKEN if verdict is Verdict.FAIL else ()
    return CaseResult.of(
        asked, verdict, reason="NaN in live rows of out" if findings else "", findings=findings
    )


@pytest.mark.parametrize("version", ["0.21.0", "0.22.1", "0.22.1+cu130", "0.22.0rc1"])
def test_the_expected_failure_is_known_keeps_its_findings_and_fails_no_run(
    version: str, approved: Approved
) -> None:
    asked = job(ENTRY)
    found = apply_known(asked, result(Verdict.FAIL, asked), {"vllm": version})
    assert found.verdict is Verdict.KNOWN
    assert found.findings == BROKEN
    assert "vllm-project/vllm#43961" in found.reason
    approved(found.reason)
    assert exit_code([found]) == 0


def test_a_case_that_passes_although_it_is_known_to_fail_is_a_failure_that_says_so() -> None:
    asked = job(ENTRY)
    found = apply_known(asked, result(Verdict.PASS, asked), {"vllm": "0.22.1"})
    assert found.verdict is Verdict.FAIL
    assert [finding.oracle for finding in found.findings] == [KNOWN_ORACLE]
    assert "vllm-project/vllm#43961" in found.reason and "0.22.1" in found.reason
    assert exit_code([found]) == 1


def test_a_kernel_may_be_known_to_fail_without_an_engine() -> None:
    entry = KnownFailure(issue="me/kernels#1", kernel="mine")
    other = job(entry)
    mine = other.model_copy(
        update={"case": other.case.model_copy(update={"params": WriteKvParams(kernel="mine")})}
    )
    full = entry.model_copy(update={"kernel": "write_kv/mine"})
    asked = mine.model_copy(update={"case": mine.case.model_copy(update={"known": (full,)})})
    assert apply_known(asked, result(Verdict.FAIL, asked), {}).verdict is Verdict.KNOWN
    found = apply_known(mine, result(Verdict.FAIL, mine), {})
    assert found.verdict is Verdict.KNOWN and "me/kernels#1" in found.reason
    gone = apply_known(mine, result(Verdict.PASS, mine), {})
    assert gone.verdict is Verdict.FAIL and "delete the entry" in gone.reason
    assert apply_known(other, result(Verdict.FAIL, other), {}).verdict is Verdict.FAIL


NEVER = ENTRY.model_copy(update={"run": "never"})


def test_a_case_that_must_never_run_is_known_and_is_not_launched(tmp_path: Path) -> None:
    names = {"calm": (), "deadly": (NEVER,)}
    jobs = [
        Job(
            key=name,
            case=Case(
                id=name, scenario="a", system="kernel", op="write_kv", params={}, known=known
            ),
        )
        for name, known in names.items()
    ]
    launched: list[str] = []

    class FakePool:
        def start(self) -> Environment:
            return Environment(engines={"vllm": "0.22.1"})

        def run(self, jobs: Sequence[Job], *_: object) -> Iterator[CaseResult]:
            for asked in jobs:
                launched.append(asked.key)
                yield CaseResult.of(asked, Verdict.PASS)

    store = RunStore.create(tmp_path, jobs, command="mla-harness run")
    silent = SimpleNamespace(on_start=None, on_result=lambda result, announce: None)
    run_jobs(store, cast("JobPool", FakePool()), cast("LiveProgress", silent))
    assert launched == ["calm"]
    found = store.finished()["deadly"]
    assert found.verdict is Verdict.KNOWN and found.known == NEVER
    assert "vllm-project/vllm#43961" in found.reason and "not launched" in found.reason


def test_a_quarantined_case_runs_in_other_releases_and_its_fault_is_skipped() -> None:
    assert (
        quarantined(job(NEVER), {"vllm": "0.23.0"}) is None
        and quarantined(job(ENTRY), {"vllm": "0.22.1"}) is None
    )
    found = quarantined(job(NEVER, fault="vllm.bug"), {"vllm": "0.22.1"})
    assert found is not None and found.verdict is Verdict.SKIP


@pytest.mark.parametrize(
    "versions", [{"vllm": "0.23.0"}, {"vllm": "0.20.2"}, {"other": "0.22.1"}, {}]
)
@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.PASS])
def test_releases_that_the_entry_does_not_name_are_judged_as_ever(
    versions: dict[str, str], verdict: Verdict
) -> None:
    asked = job(ENTRY)
    assert apply_known(asked, result(verdict, asked), versions) == result(verdict, asked)


def test_another_failure_than_the_expected_one_stays_a_failure() -> None:
    asked = job(ENTRY)
    for verdict in (Verdict.CRASH, Verdict.ERROR, Verdict.SKIP):
        assert apply_known(asked, result(verdict, asked), {"vllm": "0.22.1"}).verdict is verdict
    crashing = job(ENTRY.model_copy(update={"expect": ("fail", "crash")}))
    assert (
        apply_known(crashing, result(Verdict.CRASH, crashing), {"vllm": "0.22.1"}).verdict
        is Verdict.KNOWN
    )


def test_with_an_injected_bug_a_case_is_judged_by_that_bug_alone() -> None:
    asked = job(ENTRY, fault="write_kv.slot-zero-for-padding")
    assert (
        apply_known(asked, result(Verdict.PASS, asked), {"vllm": "0.22.1"}).verdict is Verdict.PASS
    )


def test_a_scenario_hands_an_entry_to_the_points_that_it_names() -> None:
    scenario = next(one for one in load_scenarios() if one.name == "vllm-kv-cache-stale")
    known = {case.id: [entry.issue for entry in case.known] for case in expand(scenario)}
    assert known == {
        "vllm-kv-cache-stale[backend=FLASHMLA]": [],
        "vllm-kv-cache-stale[backend=FLASH_ATTN_MLA]": ["vllm-project/vllm#43961"],
        "vllm-kv-cache-stale[backend=TRITON_MLA]": [],
    }


def test_a_wrong_entry_is_refused_with_its_place(tmp_path: Path, approved: Approved) -> None:
    for entry in [
        "{issue: 43961, engine: vllm, versions: '<0.23'}",
        "{issue: vllm-project/vllm#43961, engine: vlm, versions: '<0.23'}",
        "{issue: vllm-project/vllm#43961, engine: vllm, versions: 'up to 0.22'}",
        "{issue: vllm-project/vllm#43961, engine: vllm, versions: '<0.23', on: {kv: x}}",
        "{issue: me/kernels#1}",
        "{issue: me/kernels#1, kernel: mine, engine: vllm, versions: '<1'}",
        "{issue: vllm-project/vllm#43961, engine: vllm, versions: '<0.23', expect: [skip]}",
    ]:
        path = tmp_path / "wrong.yaml"
        path.write_text(
            f"name: wrong\nsummary: s\nsystem: kernel\nop: write_kv\nknown:\n  - {entry}\n",
            encoding="utf-8",
        )
        with approved.raises(InputError, entry) as caught:
            load_scenario(path)
        assert str(caught.value).startswith(f"{path}:6:")
