"""vLLM's CPU build as a target, on stand-ins for vLLM.

The real one is served by `.ci/real_engine`.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch_poison.patterns import Poison

import mla_harness_vllm
from harness.core.cases import Case, PoisonPlan
from harness.core.cause_codes import Code
from harness.evidence.observed import Observed, finite, reference
from harness.evidence.records import Evidence, Run
from mla_harness_adapters.plan import ServePoison
from mla_harness_vllm.cpu import allocations, build, kernels, rotary
from mla_harness_vllm.cpu.target import VllmCpuTarget
from mla_harness_vllm.params import VllmCpuParams
from mla_harness_vllm.serve import plugin
from mla_harness_vllm.serve.writes import FILLED
from mla_harness_vllm.target import agreement
from tests.transcripts import Approved

FAKE = Path(__file__).parents[1] / "serve" / "fake"


def case(**params: Any) -> Case:
    return Case(
        id="x",
        scenario="x",
        system="vllm-cpu",
        params=VllmCpuParams(**params),
        oracles=("answers", "reference"),
        poison=PoisonPlan(patterns=("nan",), sites=()),
    )


@pytest.fixture
def cpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment whose vLLM is the CPU build."""
    monkeypatch.syspath_prepend(str(FAKE))
    monkeypatch.setattr(build, "version", lambda name: "0.32.0")
    monkeypatch.setattr(type(build.ENGINE), "version", lambda self: "0.32.0")


def test_without_vllm_the_reason_names_the_command_that_installs_its_cpu_build(
    monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setattr(build, "why_not_installed", lambda engine: "it is not")
    why = VllmCpuTarget.why_not(case())
    assert why is not None and why.cause == Code.NOT_INSTALLED
    approved(str(why))


def test_a_vllm_for_gpus_is_no_cpu_build(
    monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(build, "why_not_installed", lambda engine: None)
    monkeypatch.setattr(build, "version", absent)
    monkeypatch.setattr(type(build.ENGINE), "version", lambda self: "0.32.0")
    why = VllmCpuTarget.why_not(case())
    approved(str(why))
    monkeypatch.setattr(type(build.ENGINE), "version", lambda self: "0.32.0+cpu")
    assert build.why_no_cpu_build() is None


@pytest.mark.usefixtures("cpu_build")
def test_amx_is_asked_of_the_processor_and_no_gpu_is_needed(
    monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    pytest.importorskip("lm_eval")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.cpu._is_amx_tile_supported", lambda: False)
    assert VllmCpuTarget.why_not(case()) is None
    why = VllmCpuTarget.why_not(case(backend="AMX_MLA"))
    assert why is not None and why.cause == Code.NO_DEVICE
    approved(str(why))


@pytest.mark.usefixtures("cpu_build")
def test_a_release_that_serves_no_mla_on_a_cpu_is_skipped_before_it_is_started(
    monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    pytest.importorskip("lm_eval")
    for release in ("0.27.1", "0.28.0"):
        monkeypatch.setattr(type(build.ENGINE), "version", lambda self, release=release: release)
        approved(str(VllmCpuTarget.why_not(case())))
    monkeypatch.setattr(type(build.ENGINE), "version", lambda self: "0.29.0")
    assert VllmCpuTarget.why_not(case()) is None


@pytest.mark.parametrize(("value", "variable"), [("native", "native"), ("released", "")])
def test_the_process_gets_vllms_cpu_platform_and_the_rotary_of_the_case(
    tmp_path: Path, value: str, variable: str
) -> None:
    target = VllmCpuTarget(case(rotary=value))
    plan = target.plan(tmp_path, Poison("natural", frozenset()))
    environ = target._process(plan, is_eager=False).environ
    assert environ["VLLM_TARGET_DEVICE"] == "cpu" and environ[rotary.VARIABLE] == variable


@pytest.fixture
def rotary_of_vllm(monkeypatch: pytest.MonkeyPatch) -> type:
    """The class of vLLM that both the op and the torch code belong to."""

    class RotaryEmbedding:
        def forward_native(self) -> str:
            return "torch"

        def forward_cpu(self) -> str:
            return "op"

    base = ModuleType("base")
    base.RotaryEmbedding = RotaryEmbedding  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.model_executor.layers.rotary_embedding.base", base)
    return RotaryEmbedding


def test_the_workaround_takes_vllms_torch_code_for_its_op(rotary_of_vllm: type) -> None:
    rotary.install("")
    assert rotary_of_vllm().forward_cpu() == "op"
    rotary.install(rotary.NATIVE)
    assert rotary_of_vllm().forward_cpu() == "torch"


def test_a_server_that_a_user_starts_gets_the_workaround_by_its_variable_alone(
    rotary_of_vllm: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("MLA_HARNESS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(plugin, "INSTALLED", {})
    mla_harness_vllm.activate()
    assert rotary_of_vllm().forward_cpu() == "op"
    monkeypatch.setenv(rotary.VARIABLE, rotary.NATIVE)
    mla_harness_vllm.activate()
    assert rotary_of_vllm().forward_cpu() == "torch"


def test_what_torch_allocates_from_the_first_step_on_is_filled() -> None:
    class Runner:
        def execute_model(self) -> torch.Tensor:
            return torch.empty(8)

    before = torch.ones(8)
    del before
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FILLED, "allocations", 0)
        dispatcher = allocations.install([Runner], "nan")
        try:
            first = Runner().execute_model()
            Runner().execute_model()
            assert FILLED.allocations > 0
        finally:
            allocations.UNTIL_THE_END.close()
            dispatcher.remove()
    assert bool(first.isnan().all())
    assert dispatcher.pattern is None


def judged(scores: list[tuple[list[float], list[float]]]) -> tuple[list[str], list[str]]:
    """The causes that `finite` and `reference` find in scores by decodes and by a prefill."""
    run = Run("nan")
    run.evidence.append(agreement(scores))
    evidence = Evidence(case(), (run,))
    return tuple(
        [found.cause for found in oracle(evidence).findings] for oracle in (finite, reference)
    )


def test_decodes_that_agree_with_a_prefill_up_to_rounding_pass() -> None:
    scores = [([-0.01, -0.2, -3.0], [-0.01001, -0.20002, -3.0003]), ([-0.5], [-0.50003])]
    observed = agreement(scores)
    assert isinstance(observed, Observed) and observed.tensor.shape == (2, 3)
    assert judged(scores) == ([], [])


def test_decodes_that_drift_from_a_prefill_fail_and_a_nan_is_named() -> None:
    # As far as a decode that does not see its own key.
    _, drifted = judged([([-0.01, -0.025, -0.01], [-0.01, -0.02, -0.01])])
    assert drifted == [Code.DIFFERS]
    bad, _ = judged([([-0.01, float("nan")], [-0.01, -0.01])])
    assert bad == [Code.NAN]


def test_kernels_of_the_cpu_build_run_on_a_cpu_alone(cpu_build: None) -> None:
    why = kernels.on_cpu("cuda")
    assert why is not None and why.cause == Code.NO_DEVICE
    assert kernels.on_cpu("cpu") is None


def test_a_plan_for_a_cpu_names_the_memory_that_a_cpu_has(tmp_path: Path) -> None:
    target = VllmCpuTarget(case())
    sites = frozenset({"output", "workspace", "kv.new", "graph.pool", "context.output"})
    plan = target.plan(tmp_path, Poison("nan", sites))
    assert plan.poison == ServePoison(("output", "workspace", "kv.new"), "nan")
