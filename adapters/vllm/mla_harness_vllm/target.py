"""vLLM as a target: a process serves a canary, which answers a task under poison; or its Python
runs on a CPU.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch_poison.patterns import Poison

from harness.api import Case, Code, KernelError, Moved, PlayedScript, Refused, Run, WhyNot
from mla_harness_adapters import base
from mla_harness_adapters.host_target import HostTarget, read_host
from mla_harness_adapters.served_target import PATTERNS, ServedTarget, keep_filled
from mla_harness_adapters.serving import NEVER_READY, STARTED, engine_forks
from mla_harness_vllm.faults import PATCHES
from mla_harness_vllm.options import HTTP_ENVIRON, environ, llm_options, serve_words
from mla_harness_vllm.params import VllmParams
from mla_harness_vllm.ranks import known_to_hang, why_not_split
from mla_harness_vllm.serve.child import NO_ROOM, REFUSED, VllmRequest
from mla_harness_vllm.serve.scripts import ScriptRequest
from mla_harness_vllm.serve.settings import SITES, ServePoison
from mla_harness_vllm.serve.worker_state import check
from mla_harness_vllm.tables import ENGINE

QUESTIONS = "mla_harness_vllm.serve.child"
SCRIPTS = "mla_harness_vllm.serve.scripts"
"""The modules of serving processes."""
_REFUSES = re.compile(rf"(?:ValueError|NotImplementedError|ValidationError): (?!{NO_ROOM}).*")
"""The last words of a server that does not take its options: vLLM checks them with these errors."""
BLACKWELL = ("CUTLASS_MLA", "FLASHINFER_MLA")
TRITON_IN_FULL_GRAPHS = (0, 22)
"""The first release that captures TRITON_MLA in full graphs."""
MULTIPLYING = ("FLASHMLA", "FLASH_ATTN_MLA", *BLACKWELL)
"""Backends that need finite pages. In a model with MLA layers only, all pages are finite."""


def refusal(error: KernelError) -> Exception:
    """The refusal that an engine which did not start ended with, or `error` itself."""
    words = _REFUSES.search(str(error))
    return Refused(f"vLLM refuses these options: {words[0]}") if words else error


def watched(states: dict[str, Any]) -> Moved:
    """The copies from pinned memory of all workers, and the sources that changed before their copy
    had ended.
    """
    too_late = [
        (
            (f"the copy at {copied}", f"of rank {worker['rank']}"),
            (f"a change before {changed}", "host"),
        )
        for worker in states["ranks"]
        for copied, changed in worker["races"]
    ]
    return Moved.of_copies(states["copies"], too_late, "pinned memory", "copies delayed")


class VllmTarget(ServedTarget):
    """A canary served by vLLM."""

    engine = ENGINE
    patches = PATCHES
    _forks = engine_forks("mla_harness_vllm.serve.imports:import_all", ENGINE.title)

    def __init__(self, case: Case, device: str = "cpu", **more: Any) -> None:
        super().__init__(case, device, **more)
        self._params = case.params_as(VllmParams)
        self._states: dict[str, Any] = {}
        """What the workers of the latest serving process said of themselves."""

    @classmethod
    def _why_refused(cls, case: Case, version: str) -> WhyNot | None:
        release = base.release_of(version)
        params = case.params_as(VllmParams)
        if params.backend in BLACKWELL and (
            reason := base.why_not_built((10,), "data-center Blackwell (10.0, 10.3)")
        ):
            return WhyNot(f"{params.backend} is {reason}", Code.NO_DEVICE)
        if (
            params.backend == "TRITON_MLA"
            and params.graph == "full"
            and release < TRITON_IN_FULL_GRAPHS
        ):
            return WhyNot(f"vLLM {version} refuses full graphs with TRITON_MLA")
        if (
            params.quantization != "none"
            and release[:2] == (0, 22)
            and find_spec("humming") is None
        ):
            return WhyNot(
                f"vLLM {version} imports humming-kernels for any quantization, which is not"
                " installed"
            )
        return why_not_split(params, params.checkpoint)

    def _ask(self, run: Run, folder: Path, poison: Poison) -> None:
        if self._params.script:
            run.evidence.append(self._take_script(folder, self._params.script))
            return
        super()._ask(run, folder, poison)
        if self._params.streams == "delayed":
            run.evidence.append(watched(self._states))

    def _poison(self, poison: Poison) -> ServePoison | None:
        """The case's sites in vLLM's memory, without the sites that the backend needs finite; None
        if none is left.
        """
        excluded: set[str] = set()
        if self._params.backend in MULTIPLYING:
            # These backends read unused slots. vLLM zeroes new pages, in hybrid models only.
            excluded = {"kv.tail", "kv.null"} | (
                {"kv.new"} if self._params.canary != "hybrid" else set()
            )
        sites = tuple(site for site in SITES if poison.covers(site) and site not in excluded)
        if poison.pattern not in PATTERNS or not sites:
            return None
        return ServePoison(sites, poison.pattern, self._params.poison_rank)

    def _take_script(self, place: Path, script: str) -> PlayedScript:
        """Run a script against `vllm serve`.

        Raises as `_reply` does, and Refused if nothing is shown.
        """
        place.mkdir(parents=True, exist_ok=True)
        settings = environ(self._params, None, self.fault, self.gpus) | HTTP_ENVIRON
        options = {"tolerance": 0.0} if self._params.batch_invariant else {}
        request = ScriptRequest(
            words=tuple(serve_words(self._params)), script=script, options=options
        )
        try:
            reply = self._reply(SCRIPTS, request, settings, place)
        except KernelError as error:
            raise refusal(error) if NEVER_READY in self._log_tail else error from None
        return PlayedScript.of_reply(reply)

    def _serve(
        self, folder: Path, poison: Poison, *, is_eager: bool = False, records: bool = False
    ) -> None:
        """See :meth:`ServedTarget._serve`.

        The case is about the poison, the fault and the routing.
        """
        params = self._params
        filling = self._poison(poison)
        request = VllmRequest(
            **self._questions(folder),
            model=str(params.checkpoint),
            options=llm_options(params, "none" if is_eager else params.graph),
            concurrency=params.max_num_seqs,
        )
        settings = environ(params, filling, self.fault, self.gpus, folder if records else None)
        try:
            filled = self._reply(QUESTIONS, request, settings, folder, environ(params, None))
        except KernelError as error:
            # A rank checks options too; then the engine's own error says only that a rank failed.
            started = STARTED in (folder / f"{ENGINE.name}.log").read_text(
                encoding="utf-8", errors="replace"
            )
            raise error if started or params.num_gpus == 1 else refusal(error) from None
        if REFUSED in filled:
            raise Refused(f"vLLM refuses these options: {filled[REFUSED][:500]}")
        keep_filled(folder, filled)
        self._states = filled
        check(
            filled,
            params.num_gpus,
            fault=self.fault,
            routing=params.routing == "simulated",
            # A recorded run asks too few questions to reach every site.
            poison=None if records else filling,
        )

    def _known_to_hang(self, settings: dict[str, str]) -> str:
        return known_to_hang(self._params.num_gpus, {**os.environ, **settings})


class VllmHostTarget(HostTarget):
    """One part of the installed vLLM, as `host.yaml` says."""

    host = read_host(ENGINE, PATCHES, Path(__file__).with_name("host.yaml"))
