"""The vLLM target on a stand-in for vLLM: processes, logs, verdicts. The real one is run on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.poison.patterns import Poison
from harness.records import Case, Job, PoisonPlan, Verdict
from harness.run.execute import execute
from harness.scenario.params import VllmParams
from harness.targets.vllm import VllmTarget, llm_options

pytest.importorskip("lm_eval")
FAKE = Path(__file__).parent / "fake"


def case(**params: Any) -> Case:
    settings = VllmParams(limit=4, epochs=2, **params).model_dump(mode="json")
    return Case(
        id="x", scenario="x", system="vllm", params=settings, oracles=("answers", "streams"),
        poison=PoisonPlan(patterns=("nan",), sites=()),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def fake_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FAKE))
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)


def run(tmp_path: Path, subject: Case, fault: str | None = None) -> Any:
    return execute(Job(key="x", case=subject, fault=fault, device="cpu", directory=str(tmp_path)))


def test_a_serving_process_that_answers_right_passes_with_and_without_graphs(tmp_path: Path) -> None:
    result = run(tmp_path, case(graph="full", compare_eager=True))
    assert (result.verdict, result.reason) == (Verdict.PASS, "")
    assert result.accuracy is not None and [epoch.accuracy for epoch in result.accuracy.epochs] == [1.0, 1.0]
    assert result.looked_at == {"answers": 8, "streams": 4, "crash": 1}


def test_wrong_answers_fail_and_carry_vllms_own_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_VLLM", "wrong")
    result = run(tmp_path, case(graph="full", compare_eager=True))
    assert result.verdict is Verdict.FAIL
    assert {finding.oracle for finding in result.findings} == {"answers", "streams"}
    assert "vLLM's own log line" in result.log


@pytest.mark.parametrize(("how", "words"), [("raise", "Engine core initialization failed"), ("die", "SIGABRT")])
def test_a_serving_process_that_dies_is_a_crash_with_its_last_words(
    how: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_VLLM", how)
    result = run(tmp_path, case(graph="none").model_copy(update={"oracles": ("answers",)}))
    assert result.verdict is Verdict.CRASH
    assert words in result.reason
    assert "vLLM's own log line" in result.log


def test_a_fault_that_the_release_has_as_released_is_skipped_with_that_reason(tmp_path: Path) -> None:
    result = run(tmp_path, case(), fault="vllm.skip-zero-new-blocks")
    assert result.verdict is Verdict.SKIP
    assert "has this bug as released" in result.reason


def test_a_fault_whose_code_is_not_there_is_an_error_and_never_a_pass(tmp_path: Path) -> None:
    result = run(tmp_path, case(), fault="vllm.fresh-plan-each-step")
    assert result.verdict is Verdict.ERROR
    assert "is not there" in result.reason


def test_pages_that_the_backend_is_promised_finite_are_not_poisoned() -> None:
    everything = Poison("nan", frozenset({"kv.new", "kv.tail", "output"}))
    plain = VllmTarget(case(backend="FLASHMLA"))._poison(everything)
    hybrid = VllmTarget(case(backend="FLASHMLA", canary="hybrid"))._poison(everything)
    selecting = VllmTarget(case(backend="TRITON_MLA"))._poison(everything)
    assert plain is not None and set(plain.sites) == {"output"}
    assert hybrid is not None and set(hybrid.sites) == {"output", "kv.new"}
    assert selecting is not None and set(selecting.sites) == {"output", "kv.new", "kv.tail"}


def test_memory_and_graphs_are_stated_to_vllm() -> None:
    options = llm_options(VllmParams(graph="full", num_blocks=96, kv="fp8_e4m3"), "full")
    assert options["num_gpu_blocks_override"] == 96
    assert options["kv_cache_dtype"] == "fp8"
    assert options["compilation_config"]["cudagraph_mode"] == "FULL"
    assert llm_options(VllmParams(), "none")["enforce_eager"] is True


def test_a_poison_that_filled_nothing_is_an_error_and_no_pass(tmp_path: Path) -> None:
    subject = case(canary="hybrid").model_copy(update={"oracles": ("answers",)})
    subject = subject.model_copy(update={"poison": PoisonPlan(patterns=("nan",), sites=("kv.new",))})
    result = run(tmp_path, subject)
    assert result.verdict is Verdict.ERROR
    assert "filled nothing" in result.reason


def test_a_backend_of_another_gpu_is_skipped_with_that_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (9, 0))
    result = run(tmp_path, case(backend="FLASHINFER_MLA"))
    assert result.verdict is Verdict.SKIP and "this GPU is 9.0" in result.reason
