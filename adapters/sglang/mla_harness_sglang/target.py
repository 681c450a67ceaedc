"""SGLang as a target: its processes serve a canary, which answers a task under poison; or its
Python runs on a CPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch_poison.patterns import Poison

from harness.api import Case, Code, KernelError, WhyNot
from mla_harness_adapters import base
from mla_harness_adapters.host_target import HostTarget, read_host
from mla_harness_adapters.served_target import PATTERNS, ServedTarget, keep_filled
from mla_harness_sglang.faults import PATCHES
from mla_harness_sglang.options import engine_options, environ
from mla_harness_sglang.params import SglangParams
from mla_harness_sglang.serve.child import SglangRequest
from mla_harness_sglang.serve.plan import PAGES, SITES, Plan, check, raise_refusal
from mla_harness_sglang.tables import ENGINE

QUESTIONS = "mla_harness_sglang.serve.child"
"""The module of a serving process."""
BUILT_FOR = {"flashmla": (9, 10), "fa3": (8, 9), "cutlass_mla": (10,)}
"""The major compute capabilities of backends that do not run on all."""
SELECTING = ("triton",)
"""Backends that may be given pages with NaN in unused slots.

The others multiply by 0; SGLang zeroes the pool once.
"""
WITH_CANARY = (0, 5, 13)
"""The first release with `kv_canary`."""


class SglangTarget(ServedTarget):
    """A canary served by SGLang."""

    engine = ENGINE
    patches = PATCHES

    def __init__(self, case: Case, device: str = "cpu", **more: Any) -> None:
        super().__init__(case, device, **more)
        self._params = case.params_as(SglangParams)

    @classmethod
    def _why_refused(cls, case: Case, version: str) -> WhyNot | None:
        params = case.params_as(SglangParams)
        if majors := BUILT_FOR.get(params.backend):
            words = f"compute capability {' and '.join(map(str, majors))}"
            if reason := base.why_not_built(majors, words):
                return WhyNot(f"{params.backend} is {reason}", Code.NO_DEVICE)
        if params.kv_canary != "none" and base.release_of(version) < WITH_CANARY:
            return WhyNot(f"SGLang {version} has no kv_canary")
        return None

    def _plan(self, folder: Path, poison: Poison | None) -> Plan:
        """The case's sites in SGLang's memory that the case has and that its backend does not need
        finite.
        """
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
        if poison is None or poison.pattern not in PATTERNS:
            return Plan(folder=str(folder), fault=self.fault or "")
        sites = tuple(site for site in SITES if poison.covers(site) and site not in excluded)
        return Plan(folder=str(folder), sites=sites, pattern=poison.pattern, fault=self.fault or "")

    def _serve(
        self, folder: Path, poison: Poison, *, is_eager: bool = False, records: bool = False
    ) -> None:
        """See :meth:`ServedTarget._serve`. The case is about the poison and the fault."""
        plan = self._plan(folder, None if is_eager else poison).model_copy(
            update={"records": records}
        )
        request = SglangRequest(
            **self._questions(folder),
            options=engine_options(self._params, "none" if is_eager else self._params.graph)
            | ({"base_gpu_id": self.gpus[0]} if self.gpus else {}),
            plan=plan,
        )
        settings = environ(is_faulty=bool(self.fault))
        forks = environ()
        try:
            found = self._reply(QUESTIONS, request, settings, folder, forks)
        except KernelError:
            # SGLang kills the serving process if a scheduler ends, also one that refused the plan
            # or the options.
            raise_refusal(plan)
            raise
        keep_filled(folder, found)
        check(plan, self._params.num_gpus)


class SglangHostTarget(HostTarget):
    """One part of the installed SGLang, as `host.yaml` says."""

    host = read_host(ENGINE, PATCHES, Path(__file__).with_name("host.yaml"))
