"""vLLM's host code as a target, on a stand-in that has each bug or has it not.

The real one: test_releases.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from harness.core.cases import Job
from harness.core.cause_codes import Code
from harness.core.errors import Refused
from harness.core.records import Verdict
from harness.judge.run_case import run_case
from harness.run.protocol import reply_to
from harness.scenario.expand import expand, fault_cases
from harness.scenario.load import load_scenarios, shipped_directory
from mla_harness_adapters import base, host, host_target
from mla_harness_adapters.host_target import HostRequest
from mla_harness_vllm.target import VllmHostTarget
from tests.transcripts import Approved

FAKE = Path(__file__).parent / "fake"
SCENARIOS = {s.name: s for s in load_scenarios(shipped_directory()) if s.system == "vllm-host"}
BUG_OF = {
    "vllm-host-new-blocks": "43961",
    "vllm-host-decode-plan": "35175",
    "vllm-host-graph-capture": "42444",
}


@pytest.fixture
def fake_vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A child of its own for each test: what the stand-in does is decided when it is imported."""
    monkeypatch.syspath_prepend(str(FAKE))
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    needing(monkeypatch)
    yield
    end_child()


def end_child() -> None:
    """End the child that is kept, if there is one."""
    while host_target.CHILDREN:
        host_target.CHILDREN.popitem()[1].close()


def needing(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """Let vLLM's Python need these packages and no others."""
    monkeypatch.setattr(
        VllmHostTarget, "host", dataclasses.replace(VllmHostTarget.host, needed=packages)
    )


def run(name: str, fault: str | None = None) -> Any:
    return run_case(Job(key="x", case=expand(SCENARIOS[name])[0], fault=fault))


def test_without_vllm_every_case_is_skipped_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setattr(base, "installed_version", lambda engine: None)
    results = [run(name) for name in SCENARIOS]
    assert {(one.verdict, one.cause) for one in results} == {(Verdict.SKIP, Code.NOT_INSTALLED)}
    install = VllmHostTarget.host.install
    assert all(install in one.reason for one in results)
    approved({one.reason.replace(install, "COMMAND") for one in results})


def test_a_package_that_vllms_python_needs_is_named(
    fake_vllm: None, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    needing(monkeypatch, "no_such_package")
    result = run("vllm-host-new-blocks")
    assert (result.verdict, result.cause) == (Verdict.SKIP, Code.NOT_INSTALLED)
    approved(result.reason)


def test_good_code_passes_in_one_child_and_something_was_looked_at(fake_vllm: None) -> None:
    processes = set()
    for name in BUG_OF:
        result = run(name)
        assert (result.verdict, result.reason) == (Verdict.PASS, "")
        assert all(result.looked_at.values())
        processes.add(host_target.CHILDREN["vllm"])
    assert len(processes) == 1


@pytest.mark.first(1)
@pytest.mark.parametrize("name", BUG_OF)
def test_a_release_that_has_the_bug_fails_by_the_oracle_of_its_fault(
    name: str, fake_vllm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_VLLM", BUG_OF[name])
    result = run(name)
    [(use, _)] = fault_cases(SCENARIOS[name])
    assert result.verdict is Verdict.FAIL
    assert {*use.caught_by} & {finding.oracle for finding in result.findings}
    assert set(use.blames) <= {finding.site for finding in result.findings}


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["vllm-host-decode-plan", "vllm-host-graph-capture"])
def test_code_that_is_called_as_in_the_newest_release_is_judged_the_same(
    name: str, fake_vllm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_VLLM", "called-as-0.33")
    assert run(name).verdict is Verdict.PASS
    end_child()
    monkeypatch.setenv("FAKE_VLLM", f"called-as-0.33,{BUG_OF[name]}")
    assert run(name).verdict is Verdict.FAIL


def test_a_fault_put_back_is_caught_and_gone_in_the_next_case(fake_vllm: None) -> None:
    assert run("vllm-host-graph-capture", "vllm.plan-in-warmup-only").verdict is Verdict.FAIL
    assert run("vllm-host-graph-capture").verdict is Verdict.PASS


def test_a_fault_refuses_code_that_is_not_what_it_expects(
    fake_vllm: None, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setenv("FAKE_VLLM", "42444")
    monkeypatch.setattr(VllmHostTarget, "why_not", lambda *_, **__: None)
    result = run("vllm-host-new-blocks", "vllm.skip-zero-new-blocks")
    assert result.verdict is Verdict.ERROR
    approved(result.reason)


def test_a_fault_that_the_release_has_itself_is_skipped(
    fake_vllm: None, approved: Approved
) -> None:
    result = run("vllm-host-new-blocks", "vllm.skip-zero-new-blocks")
    assert (result.verdict, result.cause) == (Verdict.SKIP, Code.AS_RELEASED)
    approved(result.reason)


@pytest.mark.nightly
@pytest.mark.parametrize("lacks", ["renamed", "no-import", "no-module"])
def test_code_that_is_called_otherwise_or_is_missing_is_an_error_that_names_it(
    lacks: str, fake_vllm: None, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setenv("FAKE_VLLM", lacks)
    result = run("vllm-host-new-blocks" if lacks == "renamed" else "vllm-host-decode-plan")
    assert result.verdict is Verdict.ERROR
    approved(result.reason)


def test_a_release_without_the_code_of_a_part_is_a_skip_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(request: HostRequest) -> Any:
        raise Refused("this vLLM has no drafters")

    def child(of: Any) -> Any:
        made = Mock()
        made.send.side_effect = lambda request: setattr(
            made.receive, "return_value", reply_to(request, host.answer)
        )
        return made

    monkeypatch.setattr(host, "run", refuse)
    monkeypatch.setattr(host_target, "_child", child)
    monkeypatch.setattr(VllmHostTarget, "why_not", lambda *_, **__: None)
    result = run("vllm-host-idle-rows")
    assert (result.verdict, result.cause) == (Verdict.SKIP, Code.REFUSED)
    assert "no drafters" in result.reason


@pytest.mark.nightly
def test_a_package_that_only_the_import_misses_is_a_skip_with_the_line_that_installs_it(
    fake_vllm: None, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setenv("FAKE_VLLM", "no-package")
    result = run("vllm-host-decode-plan")
    assert result.verdict is Verdict.SKIP and result.cause == Code.NOT_INSTALLED
    approved(result.reason)


def test_a_folder_that_an_uninstall_left_is_no_vllm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vllm").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    result = run("vllm-host-decode-plan")
    assert (result.verdict, result.cause) == (Verdict.SKIP, Code.NOT_INSTALLED)


def test_a_child_that_dies_is_a_crash_and_the_next_case_has_another_child(
    fake_vllm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_VLLM", "dies")
    result = run("vllm-host-new-blocks")
    assert result.verdict is Verdict.CRASH
    assert "SIGABRT" in result.reason
    monkeypatch.setenv("FAKE_VLLM", "")
    assert run("vllm-host-new-blocks").verdict is Verdict.PASS


@pytest.mark.nightly
@pytest.mark.parametrize(("case", "bug"), [(0, "plain-is-flat"), (1, "52109")])
def test_keys_that_are_written_row_by_row_and_read_in_tiles_are_findings(
    case: int, bug: str, fake_vllm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = expand(SCENARIOS["vllm-host-indexer-records"])
    good = [run_case(Job(key="x", case=one)) for one in cases]
    assert [(result.verdict, result.reason) for result in good] == [(Verdict.PASS, "")] * 2
    assert all(all(result.looked_at.values()) for result in good)
    end_child()
    monkeypatch.setenv("FAKE_VLLM", bug)
    verdicts = [run_case(Job(key="x", case=one)) for one in cases]
    assert [result.verdict is Verdict.FAIL for result in verdicts] == [
        number == case for number in range(2)
    ]
    assert "reference" in {finding.oracle for finding in verdicts[case].findings}
