"""vLLM as a target: a process serves one canary, which answers a task under poison, with or without a fault."""

from __future__ import annotations

import json
import os
import re
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import torch

from harness.accuracy.answer_log import read_run
from harness.core import extras
from harness.core.cases import Case
from harness.core.cause_codes import Code, Reason
from harness.core.errors import KernelError, Refused
from harness.core.params import Record
from harness.core.records import CaseResult, FirstNan, Verdict
from harness.engines import base
from harness.engines.serving import NEVER_READY, EngineForks, Serving
from harness.engines.vllm.faults import why_not
from harness.engines.vllm.options import HTTP_ENVIRON, canary, environ, llm_options, serve_words
from harness.engines.vllm.params import VllmParams
from harness.engines.vllm.ranks import collected, known_to_hang, why_not_split
from harness.engines.vllm.serve.child import REFUSED, ServeRequest
from harness.engines.vllm.serve.scripts import ScriptRequest
from harness.engines.vllm.serve.settings import SITES, ServePoison
from harness.engines.vllm.serve.worker_state import check
from harness.engines.vllm.tables import ENGINE
from harness.judge.run_records import Run
from harness.judge.target import Target
from harness.memory.poison.patterns import Poison
from harness.run.fork_server import ForkServer

QUESTIONS, SCRIPTS = "harness.engines.vllm.serve.child", "harness.engines.vllm.serve.scripts"
"""The modules of serving processes."""
_REFUSES = re.compile(r"(?:ValueError|NotImplementedError|ValidationError): .*")
"""The last words of a server that does not take its options: vLLM checks them with these errors."""
FILLED_FILE = "poison.json"
"""The workers' states, `worker_state.summed`, in the folder of the answers."""
PATTERNS = ("nan", "max")
"""Patterns of a scenario that the plug-in fills. Any other leaves memory as it is."""
BLACKWELL = ("CUTLASS_MLA", "FLASHINFER_MLA")
TRITON_IN_FULL_GRAPHS = (0, 22)
"""The first release that captures TRITON_MLA in full graphs."""
MULTIPLYING = ("FLASHMLA", "FLASH_ATTN_MLA", *BLACKWELL)
"""Backends that need finite pages. In a model with MLA layers only, all pages are finite."""


class VllmTarget(Target):
    """Serves a case's canary with vLLM for each poison pattern, and without graphs to compare the answers."""

    injects_faults = True
    _forks: ClassVar[EngineForks] = EngineForks("harness.engines.vllm.serve.imports:import_all", ENGINE.title)

    def __init__(self, case: Case, device: str = "cpu", **more: Any) -> None:
        super().__init__(case, device, **more)
        self._params = case.params_as(VllmParams)
        self._serving = Serving(ENGINE.title)

    @classmethod
    def why_not(cls, case: Case, device: str = "cpu", fault: str | None = None) -> str:
        """See :meth:`Target.why_not`."""
        if reason := base.why_not_installed(ENGINE):
            return reason
        version = str(base.installed_version(ENGINE))
        release = base.release_of(version)
        if not torch.cuda.is_available():
            return Reason("vLLM serves on CUDA, and there is no CUDA device on this machine", Code.NO_DEVICE)
        if reason := extras.why_not(extras.ACCURACY):
            return reason
        params = case.params_as(VllmParams)
        if params.backend in BLACKWELL:
            major, minor = torch.cuda.get_device_capability()
            if major != 10:
                why = f"{params.backend} is built for data-center Blackwell (10.0, 10.3); this GPU is {major}.{minor}"
                return Reason(why, Code.NO_DEVICE)
        if params.backend == "TRITON_MLA" and params.graph == "full" and release < TRITON_IN_FULL_GRAPHS:
            return f"vLLM {version} refuses full graphs with TRITON_MLA"
        if params.quantization != "none" and release[:2] == (0, 22) and find_spec("humming") is None:
            return f"vLLM {version} imports humming-kernels for any quantization, which is not installed"
        if not (canary(params) / "config.json").is_file():
            return f"{canary(params)} is not there: train one with `canary train`"
        if reason := why_not_split(params, canary(params)):
            return reason
        return why_not(fault, version) if fault else ""

    def run(self, poison: Poison) -> Run:
        """Ask all questions. A process that dies or raises is the run's error, with the end of vLLM's log."""
        run = Run(poison.pattern)
        with tempfile.TemporaryDirectory() as scratch:
            place = Path(self.directory or scratch) / poison.pattern
            settings = self._poison(poison)
            try:
                if self._params.script:
                    run.scripts = [self._take_script(place, self._params.script)]
                else:
                    self._serve(place / "asked", self._params.graph, settings)
                    run.accuracy = read_run(place / "asked")
                    run.least_accuracy = self._params.least_correct_percent / 100
                if self._params.compare_eager and self._params.graph != "none":
                    self._serve(place / "eager", "none", settings)
                    run.eager = read_run(place / "eager")
            except KernelError as error:
                run.error = error
            run.log = self._serving.log_tail
        return run

    def first_writer(self, poison: Poison) -> FirstNan:
        """Serve once with the first-NaN recorder in every worker. Returns the first writer over all ranks.

        If vLLM dies before its recorders report, the result has the reason. Raises HarnessError if vLLM does not fail
        and a worker had no recorder.
        """
        with tempfile.TemporaryDirectory() as scratch:
            folder, failure = Path(scratch) / "ranks", ""
            try:
                self._serve(Path(scratch) / "asked", self._params.graph, self._poison(poison), folder)
            except KernelError as error:
                failure = str(error)
            return collected(folder, self._params.num_gpus, failure)

    def _poison(self, poison: Poison) -> ServePoison | None:
        """The case's sites in vLLM's memory, without the sites that the backend needs finite; None if none is left."""
        excluded: set[str] = set()
        if self._params.backend in MULTIPLYING:
            # These backends read unused slots. vLLM zeroes new pages, in hybrid models only.
            excluded = {"kv.tail", "kv.null"} | ({"kv.new"} if self._params.canary != "hybrid" else set())
        sites = tuple(site for site in SITES if poison.covers(site) and site not in excluded)
        if poison.pattern not in PATTERNS or not sites:
            return None
        return ServePoison(sites, poison.pattern, self._params.poison_rank)

    def _take_script(self, place: Path, script: str) -> CaseResult:
        """Run a script against `vllm serve`. Raises as `_reply` does, and Refused if nothing is shown."""
        place.mkdir(parents=True, exist_ok=True)
        settings = environ(self._params, None, self.fault, self.gpus) | HTTP_ENVIRON
        request = ScriptRequest(words=tuple(serve_words(self._params)), script=script)
        try:
            result = CaseResult.model_validate(self._reply(SCRIPTS, request, settings, place)["result"])
        except KernelError as error:
            if NEVER_READY in self._serving.log_tail and (words := _REFUSES.search(str(error))):
                raise Refused(f"vLLM refuses these options: {words[0]}") from None
            raise
        if result.verdict is Verdict.SKIP:
            raise Refused(result.reason)
        return result

    def _serve(self, directory: Path, graph: str, poison: ServePoison | None, first_nan: Path | None = None) -> None:
        """Run one serving process to its end, with recorders if `first_nan` is the folder for their reports.

        Raises as `_reply` does, Refused if vLLM refuses the options, and HarnessError if a worker lacks poison, fault
        or routing.
        """
        directory.mkdir(parents=True, exist_ok=True)
        request = ServeRequest(
            model=str(canary(self._params)),
            options=llm_options(self._params, graph),
            concurrency=self._params.max_num_seqs,
            task=self._params.task,
            limit=self._params.limit,
            epochs=self._params.epochs,
            max_tokens=self._params.max_tokens,
            directory=str(directory),
        )
        settings = environ(self._params, poison, self.fault, self.gpus, first_nan)
        spawns = self._params.process == "spawn"
        forks = None if spawns else self._forks.server(environ(self._params, None), self._params.timeout_seconds)
        filled = self._reply(QUESTIONS, request, settings, directory, forks)
        if REFUSED in filled:
            raise Refused(f"vLLM refuses these options: {filled[REFUSED][:500]}")
        (directory / FILLED_FILE).write_text(json.dumps(filled), encoding="utf-8")
        check(
            filled,
            self._params.num_gpus,
            fault=self.fault,
            routing=self._params.routing == "simulated",
            # A recorded run asks too few questions to reach every site.
            poison=poison if first_nan is None else None,
        )

    def _reply(
        self, module: str, request: Record, settings: dict[str, str], folder: Path, forks: ForkServer | None = None
    ) -> dict[str, Any]:
        """See :meth:`Serving.reply`."""
        seconds, ranks = self._params.timeout_seconds, self._params.num_gpus
        hangs = known_to_hang(ranks, {**os.environ, **settings})
        return self._serving.reply(module, request, settings, folder / "vllm.log", seconds, forks, ranks, hangs)
