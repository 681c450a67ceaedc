"""Cases of SGLang's Python without SGLang, and what the oracles say of Runs that are wrong."""

from __future__ import annotations

import pytest
import torch
from torch_poison.patterns import Poison

from harness.core.cases import Case, Job
from harness.core.cause_codes import Code
from harness.core.records import Verdict
from harness.evidence.counts import Count
from harness.evidence.observed import Observed
from harness.evidence.records import Run
from harness.judge.run_case import run_case
from harness.scenario.expand import expand
from harness.scenario.load import load_scenarios, shipped_directory
from mla_harness_adapters import base, host_target
from mla_harness_sglang.faults import PATCHES
from mla_harness_sglang.params import SglangHostParams
from mla_harness_sglang.target import SglangHostTarget
from tests.transcripts import Approved

CASES = {
    case.id: case
    for one in load_scenarios(shipped_directory())
    if one.system == "sglang-host"
    for case in expand(one)
}


def test_without_sglang_a_case_is_skipped_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setattr(base, "installed_version", lambda engine: None)
    results = [run_case(Job(key="x", case=case)) for case in CASES.values()]
    assert {(one.verdict, one.cause) for one in results} == {(Verdict.SKIP, Code.NOT_INSTALLED)}
    install = SglangHostTarget.host.install
    assert all(install in one.reason for one in results)
    approved({one.reason.replace(install, "COMMAND") for one in results})


def test_a_package_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setattr(base, "installed_version", lambda engine: "0.5.23")
    monkeypatch.setattr(
        host_target, "find_spec", lambda name: None if name == "orjson" else object()
    )
    case = next(iter(CASES.values()))
    reason = SglangHostTarget.why_not(case)
    assert reason.cause == Code.NOT_INSTALLED
    approved(reason.sentence)


def test_a_fault_for_other_releases_is_a_skip_with_its_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(base, "installed_version", lambda engine: "0.5.17")
    monkeypatch.setattr(host_target, "find_spec", lambda name: object())
    case = CASES["sglang-host-radix-cache[page_size=1]"]
    reason = SglangHostTarget.why_not(case, fault="sglang.freed-view-of-row")
    assert reason.cause == Code.NO_PATCH
    patch = PATCHES["sglang.freed-view-of-row"][0]
    assert patch.first in reason.sentence and patch.last in reason.sentence


def test_flashmla_needs_its_page_size(approved: Approved) -> None:
    with approved.raises(ValueError):
        SglangHostParams(part="decode-replay", backend="flashmla", page_size=1)


def made(read: torch.Tensor, wanted: torch.Tensor, *counts: Count) -> Run:
    live = torch.ones(len(read), dtype=torch.bool)
    return Run(
        "nan",
        [Observed("KV", read, live, wanted.double(), "write_kv.fp32", "token"), *counts],
    )


@pytest.mark.parametrize(
    ("wrong", "oracle"),
    [("freed", "finite"), ("of another", "reference"), ("twice", "conserved"), ("nothing", None)],
)
def test_each_way_to_be_wrong_is_a_finding_of_its_oracle(
    wrong: str, oracle: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(self: SglangHostTarget, poison: Poison) -> Run:
        wanted = torch.arange(8.0).view(4, 2) + 1
        read = wanted.clone()
        if wrong == "freed":
            read[1] = poison.empty(2, dtype=torch.float32, site="kv.free")
        elif wrong == "of another":
            read[1] = wanted[2]
        return made(
            read, wanted, Count("free slots, each once", 8, 9 if wrong == "twice" else 8, "step 1")
        )

    monkeypatch.setattr(SglangHostTarget, "why_not", lambda *_, **__: None)
    monkeypatch.setattr(SglangHostTarget, "run", run)
    case: Case = CASES["sglang-host-radix-cache[page_size=1]"]
    result = run_case(Job(key="x", case=case))
    assert result.verdict is (Verdict.FAIL if oracle else Verdict.PASS)
    assert oracle is None or oracle in {finding.oracle for finding in result.findings}
