"""vLLM's CPU build as a target: the whole engine serves a canary on a CPU."""

from __future__ import annotations

from typing import Any

import torch

from harness.api import Case, Code, WhyNot
from mla_harness_adapters.plan import Plan
from mla_harness_adapters.serving import engine_forks
from mla_harness_vllm.cpu import rotary
from mla_harness_vllm.cpu.build import why_no_cpu_build
from mla_harness_vllm.cpu.settings import DEVICE_VARIABLE, MEMORY
from mla_harness_vllm.params import VllmCpuParams
from mla_harness_vllm.tables import ENGINE
from mla_harness_vllm.target import VllmTarget

ENVIRON = {
    DEVICE_VARIABLE: "cpu",
    # A thread bound to a core would wait for the other cases of that core.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


class VllmCpuTarget(VllmTarget):
    """A canary served by vLLM's CPU build."""

    memory = MEMORY
    _forks = engine_forks("mla_harness_vllm.cpu.imports:import_all", ENGINE.title)

    def __init__(self, case: Case, device: str = "cpu", **more: Any) -> None:
        super().__init__(case, device, **more)
        self._cpu = case.params_as(VllmCpuParams)

    @classmethod
    def why_not(cls, case: Case, device: str = "cpu", fault: str | None = None) -> WhyNot | None:
        """See :meth:`ServedTarget.why_not`. The CPU build is asked for by its own name."""
        return why_no_cpu_build() or super().why_not(case, device, fault)

    @classmethod
    def _why_no_device(cls, case: Case) -> WhyNot | None:
        is_amx = case.params_as(VllmCpuParams).backend == "AMX_MLA"
        if is_amx and not torch.cpu._is_amx_tile_supported():
            return WhyNot("AMX_MLA needs a processor with AMX", Code.NO_DEVICE)
        return None

    def excluded_sites(self) -> set[str]:
        """See :meth:`ServedTarget.excluded_sites`. The CPU's kernels read no slot past a length."""
        return set()

    def _environ(self, plan: Plan, gpus: tuple[int, ...] = ()) -> dict[str, str]:
        own = {rotary.VARIABLE: rotary.NATIVE if self._cpu.rotary == "native" else ""}
        return {**super()._environ(plan, gpus), **ENVIRON, **own}
