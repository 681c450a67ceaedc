"""A served case as a script of the plain engine, which is written only once it has shown the
failure.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.cases import Case, Job, PoisonPlan
from harness.core.errors import HarnessError
from harness.core.findings import Finding
from harness.core.records import CaseResult, Verdict
from harness.diagnose.script.code import MARKER
from harness.diagnose.script.export import Exported, first_that_shows
from harness.run.environment import Environment
from mla_harness_vllm.params import VllmParams
from tests.transcripts import Approved

FAKE = Path(__file__).parents[2] / "adapters" / "vllm" / "tests" / "serve" / "fake"
FAILING = {"graph": "full", "runner": "v2", "prefix_caching": True, "max_num_seqs": 16}


def served(**params: object) -> Job:
    case = Case(
        id="vllm-x[graph=full]",
        scenario="vllm-x",
        system="vllm",
        refs=("vllm-project/vllm#57017",),
        params=VllmParams.model_validate({"limit": 4, "epochs": 2, **params}),
        oracles=("answers",),
        poison=PoisonPlan(patterns=("nan",), sites=()),
    )
    return Job(key=case.id, case=case, device="cpu")


def exported(job: Job) -> Exported:
    found = Finding(oracle="answers", message="0 of 4 answers are right")
    result = CaseResult(
        key=job.key, id=job.case.id, scenario="vllm-x", verdict=Verdict.FAIL, findings=(found,)
    )
    machine = Environment(torch="2.13.0", python="3.11", platform="Linux")
    return first_that_shows(job, result, None, machine, is_pytest=False)


@pytest.fixture
def fake_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for vLLM in the script's process, which loses answers under graphs."""
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    monkeypatch.setenv("FAKE_VLLM", "wrong")


@pytest.mark.nightly
@pytest.mark.usefixtures("fake_vllm")
def test_a_served_case_becomes_a_script_of_the_options_that_fail_and_the_plain_ones(
    approved: Approved,
) -> None:
    one = exported(served(**FAILING))
    assert one.check.holds
    approved(one.check.with_bug.last_line)
    options = one.text.partition("FAILING = ")[2].partition("}\n")[0]
    assert '"enable_prefix_caching": True' in options and '"enforce_eager": False' in options
    assert '"max_num_seqs": 16' in options and "kv_cache_dtype" not in options
    (marked,) = (line for line in one.text.splitlines() if line.endswith(MARKER))
    assert '"VLLM_USE_V2_MODEL_RUNNER": "1"' in marked and marked.endswith(
        f"PLAIN | FAILING{MARKER}"
    )
    assert "harness." not in one.text


@pytest.mark.nightly
@pytest.mark.usefixtures("fake_vllm")
def test_no_script_that_passes_is_written(
    monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    with approved.raises(HarnessError):
        exported(served())
    monkeypatch.setenv("FAKE_VLLM", "")
    with approved.raises(HarnessError):
        exported(served(**FAILING))
