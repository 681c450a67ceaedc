"""SGLang as a target: its processes serve a canary, which answers a task under poison; or its
Python runs on a CPU.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from torch_poison.patterns import Poison

from harness.api import Case
from mla_harness_adapters import base
from mla_harness_adapters.host_target import HostTarget, read_host
from mla_harness_adapters.plan import Plan
from mla_harness_adapters.releases import of_release
from mla_harness_adapters.served_target import BuiltFor, ServedTarget
from mla_harness_adapters.serving import ServeRequest, ServingProcess
from mla_harness_sglang.faults import PATCHES
from mla_harness_sglang.options import OPTION_ERRORS, engine_options, environ
from mla_harness_sglang.params import SglangParams
from mla_harness_sglang.releases import NEEDS_WIDE_MODULE, NOT_SERVED
from mla_harness_sglang.serve.plan import MEMORY, PAGES
from mla_harness_sglang.tables import ENGINE

QUESTIONS = "mla_harness_sglang.serve.child"
"""The module of a serving process."""
WIDE_FOLDER = "wide-canary"
SELECTING = ("triton",)
"""Backends that may be given pages with NaN in unused slots.

The others multiply by 0; SGLang zeroes the pool once.
"""


class SglangTarget(ServedTarget):
    """A canary served by SGLang."""

    engine = ENGINE
    patches = PATCHES
    memory = MEMORY
    option_errors = OPTION_ERRORS
    process_name = "scheduler"
    not_served = NOT_SERVED
    built_for = {  # noqa: RUF012
        "flashmla": BuiltFor((9, 10), "compute capability 9 and 10"),
        "fa3": BuiltFor((8, 9), "compute capability 8 and 9"),
        "cutlass_mla": BuiltFor((10,), "compute capability 10"),
    }

    def __init__(self, case: Case, device: str = "cpu", **more: Any) -> None:
        super().__init__(case, device, **more)
        self._params = case.params_as(SglangParams)

    def excluded_sites(self) -> set[str]:
        """See :meth:`ServedTarget.excluded_sites`."""
        params = self._params
        excluded = set[str]()
        if params.backend not in SELECTING:
            excluded.update(PAGES)
        if params.page_size == 1:
            excluded.add("kv.tail")
        if params.graph == "none":
            excluded |= {"graph.pad_rows", "graph.pool"}
        if params.overlap:
            # The next step's entries may be written already.
            excluded.add("block_table.pad")
        return excluded

    def plan(self, folder: Path, poison: Poison, *, is_eager: bool = False) -> Plan:
        """See :meth:`ServedTarget.plan`. The run without graphs has no poison."""
        plan = super().plan(folder, poison, is_eager=is_eager)
        return plan.but(poison=None) if is_eager else plan

    def _serve(
        self, folder: Path, poison: Poison, *, is_eager: bool = False, records: bool = False
    ) -> None:
        """See :meth:`ServedTarget._serve`. A wide checkpoint does not stay: it has 50 MB."""
        try:
            super()._serve(folder, poison, is_eager=is_eager, records=records)
        finally:
            shutil.rmtree(folder / WIDE_FOLDER, ignore_errors=True)

    @property
    def _is_wide(self) -> bool:
        """Whether the installed release needs more columns than the canary has."""
        version = str(base.installed_version(ENGINE))
        return self._params.canary == "mtp" and of_release(version, NEEDS_WIDE_MODULE)

    def _process(self, plan: Plan, *, is_eager: bool) -> ServingProcess:
        """See :meth:`ServedTarget._process`."""
        options = engine_options(self._params, "none" if is_eager else self._params.graph)
        if self.gpus:
            options["base_gpu_id"] = self.gpus[0]
        if self._is_wide:
            # It needs an extra, which a list of cases does not.
            from mla_harness_sglang.serve.wide_checkpoint import write_wide

            wide = write_wide(self._params.checkpoint, Path(plan.folder) / WIDE_FOLDER)
            options["model_path"] = str(wide)
        request = ServeRequest.of(self._params, plan, options)
        return ServingProcess(QUESTIONS, request, environ(is_faulty=bool(self.fault)), environ())


class SglangHostTarget(HostTarget):
    """One part of the installed SGLang, as `host.yaml` says."""

    host = read_host(ENGINE, PATCHES, Path(__file__).with_name("host.yaml"))
