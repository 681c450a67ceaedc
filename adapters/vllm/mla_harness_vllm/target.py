"""vLLM as a target: a process serves a canary, which answers a task under poison; or its Python
runs on a CPU.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from torch_poison.patterns import Poison

from harness.api import Case, KernelError, Moved, Observed, PlayedScript, Run, WhyNot
from mla_harness_adapters.host_target import HostTarget, read_host
from mla_harness_adapters.plan import Plan
from mla_harness_adapters.report import Report
from mla_harness_adapters.served_target import BuiltFor, ServedTarget
from mla_harness_adapters.serving import NEVER_READY, ServingProcess, engine_forks
from mla_harness_vllm.faults import PATCHES
from mla_harness_vllm.options import (
    HTTP_ENVIRON,
    OPTION_ERRORS,
    environ,
    llm_options,
    serve_words,
)
from mla_harness_vllm.params import ServedVllmParams
from mla_harness_vllm.ranks import known_to_hang, why_not_split
from mla_harness_vllm.releases import NOT_SERVED
from mla_harness_vllm.serve.child import VllmRequest
from mla_harness_vllm.serve.scripts import ScriptRequest
from mla_harness_vllm.serve.settings import MEMORY, STRATEGY
from mla_harness_vllm.tables import ENGINE

QUESTIONS = "mla_harness_vllm.serve.child"
"""The module of a process that asks questions."""
SCRIPTS = "mla_harness_vllm.serve.scripts"
"""The module of a process that takes a script to a server."""
BLACKWELL = ("CUTLASS_MLA", "FLASHINFER_MLA")
MULTIPLYING = ("FLASHMLA", "FLASH_ATTN_MLA", *BLACKWELL)
"""Backends that need finite pages. In a model with MLA layers only, all pages are finite."""
DELAYS = "7"
"""The seed of `streams: delayed`."""


def watched(report: Report) -> Moved:
    """The copies from pinned memory of all workers, and the sources that changed before their copy
    had ended.
    """
    too_late = [
        (
            (f"the copy at {copied}", f"of rank {worker.rank}"),
            (f"a change before {changed}", "host"),
        )
        for worker in report.ranks
        for copied, changed in worker.races
    ]
    return Moved.of_copies(report.total("copies"), too_late, "pinned memory", "copies delayed")


def agreement(scores: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Observed:
    """The probabilities of the tokens of answers, by decodes, beside those by one prefill.

    `scores` has the log probabilities of each answer's tokens, by decodes and by a prefill. Rows
    are answers; one that is shorter than the longest ends in zeros on both sides.
    """
    by_decodes, by_prefill = (
        pad_sequence([torch.tensor(one[side], dtype=torch.float64).exp() for one in scores], True)
        for side in (0, 1)
    )
    return Observed(
        "probabilities of the answers' tokens",
        by_decodes.float(),
        torch.ones(len(by_decodes), dtype=torch.bool),
        by_prefill,
        bound="engine.probabilities",
        describe="answer",
    )


class VllmTarget(ServedTarget):
    """A canary served by vLLM."""

    engine = ENGINE
    patches = PATCHES
    memory = MEMORY
    option_errors = OPTION_ERRORS
    process_name = "worker"
    not_served = NOT_SERVED
    built_for = dict.fromkeys(BLACKWELL, BuiltFor((10,), "data-center Blackwell (10.0, 10.3)"))
    _forks = engine_forks("mla_harness_vllm.serve.imports:import_all", ENGINE.title)

    def __init__(self, case: Case, device: str = "cpu", **more: Any) -> None:
        super().__init__(case, device, **more)
        self._params = case.params_as(ServedVllmParams)

    @classmethod
    def _why_refused(cls, case: Case, version: str) -> WhyNot | None:
        if reason := super()._why_refused(case, version):
            return reason
        params = case.params_as(ServedVllmParams)
        return why_not_split(params, params.checkpoint)

    def _ask(self, run: Run, folder: Path, poison: Poison) -> None:
        if self._params.script:
            run.evidence.append(self._take_script(folder, self._params.script))
            return
        super()._ask(run, folder, poison)
        if self._params.prefilled:
            run.evidence.append(agreement(self._told["scores"]))
        if self._params.streams == "delayed":
            run.evidence.append(watched(self._report))

    def excluded_sites(self) -> set[str]:
        """See :meth:`ServedTarget.excluded_sites`."""
        if self._params.backend not in MULTIPLYING:
            return set()
        # These backends read unused slots. vLLM zeroes new pages, in hybrid models only.
        new = {"kv.new"} if self._params.canary != "hybrid" else set()
        return {"kv.tail", "kv.null"} | new

    def plan(self, folder: Path, poison: Poison, *, is_eager: bool = False) -> Plan:
        """See :meth:`ServedTarget.plan`."""
        plan = super().plan(folder, poison, is_eager=is_eager)
        if plan.poison is not None:
            plan = plan.but(poison=replace(plan.poison, rank=self._params.poison_rank))
        return plan.but(
            routing=STRATEGY if self._params.routing == "simulated" else "",
            streams=DELAYS if self._params.streams == "delayed" else "",
        )

    def _take_script(self, folder: Path, script: str) -> PlayedScript:
        """Run a script against `vllm serve`.

        Raises as `reply_of` does, and Refused if nothing is shown.
        """
        folder.mkdir(parents=True, exist_ok=True)
        params = self._params
        plan = self.plan(folder, Poison("natural", frozenset()))
        settings = self._environ(plan, self.gpus) | HTTP_ENVIRON
        options = {"tolerance": 0.0} if params.batch_invariant else {}
        request = ScriptRequest(words=tuple(serve_words(params)), script=script, options=options)
        try:
            reply = self.reply_of(ServingProcess(SCRIPTS, request, settings), folder)
        except KernelError as error:
            # The server's processes have no hook that could note a refusal.
            refused = OPTION_ERRORS.of_log(error) if NEVER_READY in self._log_tail else None
            raise refused or error from None
        return PlayedScript.of_reply(reply)

    def _process(self, plan: Plan, *, is_eager: bool) -> ServingProcess:
        """See :meth:`ServedTarget._process`."""
        params = self._params
        options = llm_options(params, "none" if is_eager else params.graph)
        request = VllmRequest.of(
            params,
            plan,
            options,
            model=str(params.checkpoint),
            concurrency=params.max_num_seqs,
            prefilled=params.prefilled,
        )
        imported = plan.but(poison=None, fault="", records=False)
        return ServingProcess(
            QUESTIONS, request, self._environ(plan, self.gpus), self._environ(imported)
        )

    def _environ(self, plan: Plan, gpus: tuple[int, ...] = ()) -> dict[str, str]:
        """The environment of the case's processes."""
        return environ(self._params, plan, gpus)

    @property
    def has_bare_ranks(self) -> bool:
        """See :attr:`ServedTarget.has_bare_ranks`. The one rank of a single GPU is in the serving
        process.
        """
        return self._params.num_gpus > 1

    def _known_to_hang(self, settings: dict[str, str]) -> str:
        return known_to_hang(self._params.num_gpus, {**os.environ, **settings})


class VllmHostTarget(HostTarget):
    """One part of the installed vLLM, as `host.yaml` says."""

    host = read_host(ENGINE, PATCHES, Path(__file__).with_name("host.yaml"))
