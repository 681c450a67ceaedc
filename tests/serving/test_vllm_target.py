"""The vLLM target on a stand-in for vLLM: processes, logs, verdicts. The real one is run on a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.errors import HarnessError
from harness.poison.patterns import Poison
from harness.records import Case, Job, PoisonPlan, Verdict
from harness.run.execute import execute
from harness.scenario.params import VllmParams
from harness.serving.child import FILLED_FILE
from harness.serving.routing import ROUTING_VARIABLE, STRATEGY
from harness.serving.settings import ServePoison
from harness.targets.vllm import VllmTarget, _check_filled, _environ, llm_options

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


@pytest.mark.parametrize(
    ("version", "params", "words"),
    [
        ("0.21.0", {"backend": "TRITON_MLA", "graph": "full"}, "refuses full graphs"),
        ("0.22.1", {"canary": "moe", "quantization": "fp8_per_tensor"}, "humming-kernels"),
    ],
)
def test_what_a_release_cannot_serve_is_skipped_with_that_reason(
    version: str, params: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.targets.vllm.installed_version", lambda: version)
    result = run(tmp_path, case(**params))
    assert result.verdict is Verdict.SKIP and words in result.reason


def test_the_simulator_and_the_experts_kernel_are_stated_to_vllm() -> None:
    params = VllmParams(canary="moe", routing="simulated", quantization="fp8_per_tensor", graph="piecewise")
    options = llm_options(params, "piecewise")
    assert options["moe_backend"] == "triton" and options["quantization"] == "fp8_per_tensor"
    assert options["compilation_config"]["mode"] == 3 and options["compilation_config"]["backend"] == "eager"
    assert _environ(params, None)[ROUTING_VARIABLE] == STRATEGY
    assert _environ(VllmParams(), None).get(ROUTING_VARIABLE) is None


def test_context_rows_that_were_asked_for_and_never_filled_are_an_error(tmp_path: Path) -> None:
    filled = {"steps": 9, "sweeps": 9, "blocks": 0, "context_rows": 0}
    (tmp_path / FILLED_FILE).write_text(json.dumps(filled))
    _check_filled(tmp_path, ServePoison(("output",)))
    with pytest.raises(HarnessError, match="filled nothing"):
        _check_filled(tmp_path, ServePoison(("output", "context.output")))
