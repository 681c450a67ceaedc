"""SGLang as a target: its processes serve one canary, which answers a task under poison, with or without a fault."""

from __future__ import annotations

import importlib.util
import json
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import torch

from harness.accuracy.answer_log import read_run
from harness.core import extras
from harness.core.cases import Case
from harness.core.cause_codes import Code, Reason
from harness.core.errors import HarnessError, KernelError
from harness.core.records import FirstNan
from harness.engines import base
from harness.engines.serving import EngineForks, Serving
from harness.engines.sglang.faults import why_not
from harness.engines.sglang.options import canary, engine_options, environ
from harness.engines.sglang.params import SglangParams
from harness.engines.sglang.serve.child import ServeRequest
from harness.engines.sglang.serve.plan import FIRST_NAN, PAGES, SITES, Plan, check, raise_refusal
from harness.engines.sglang.tables import ENGINE
from harness.judge.run_records import Run
from harness.judge.target import Target
from harness.memory.poison.patterns import Poison

QUESTIONS, IMPORTS = "harness.engines.sglang.serve.child", "harness.engines.sglang.serve.imports:import_all"
"""The module of a serving process, and what it imports."""
FILLED_FILE = "poison.json"
"""The schedulers' states and the seconds of each phase, in the folder of the answers."""
PATTERNS = ("nan", "max")
"""Patterns of a scenario that the hooks fill. Any other leaves memory as it is."""
BUILT_FOR = {"flashmla": (9, 10), "fa3": (8, 9), "cutlass_mla": (10,)}
"""The major compute capabilities of backends that do not run on all."""
SELECTING = ("triton",)
"""Backends that may be given pages with NaN in unused slots. The others multiply by 0; SGLang zeroes the pool once."""
WITH_CANARY = (0, 5, 13)
"""The first release with `kv_canary`."""


def why_no_forks() -> str:
    """Why processes with SGLang's imports cannot be forked. Empty if only the imports can show it."""
    found = importlib.util.find_spec("cutlass")
    return "FlashInfer imports cutlass, which starts the CUDA driver" if found else ""


class SglangTarget(Target):
    """Serves a case's canary with SGLang for each poison pattern, and without graphs to compare the answers."""

    injects_faults = True
    _forks: ClassVar[EngineForks] = EngineForks(IMPORTS, ENGINE.title, why_no_forks)

    def __init__(self, case: Case, device: str = "cpu", **more: Any) -> None:
        super().__init__(case, device, **more)
        self._params = case.params_as(SglangParams)
        self._serving = Serving(ENGINE.title)

    @classmethod
    def why_not(cls, case: Case, device: str = "cpu", fault: str | None = None) -> str:
        """See :meth:`Target.why_not`."""
        if reason := base.why_not_installed(ENGINE):
            return reason
        version = str(base.installed_version(ENGINE))
        if not torch.cuda.is_available():
            return Reason("SGLang serves on CUDA, and there is no CUDA device on this machine", Code.NO_DEVICE)
        if reason := extras.why_not(extras.ACCURACY):
            return reason
        params = case.params_as(SglangParams)
        if majors := BUILT_FOR.get(params.backend):
            words = f"compute capability {' and '.join(map(str, majors))}"
            if reason := base.why_not_built(majors, words):
                return Reason(f"{params.backend} is {reason}", Code.NO_DEVICE)
        if params.kv_canary != "none" and base.release_of(version) < WITH_CANARY:
            return f"SGLang {version} has no kv_canary"
        if not (canary(params) / "config.json").is_file():
            return f"{canary(params)} is not there: train one with `canary train`"
        return why_not(fault, version) if fault else ""

    def run(self, poison: Poison) -> Run:
        """Ask all questions. A process that dies or raises is the run's error, with the end of SGLang's log."""
        run = Run(poison.pattern)
        with tempfile.TemporaryDirectory() as scratch:
            place = Path(self.directory or scratch) / poison.pattern
            try:
                self._serve(place / "asked", self._params.graph, self._plan(place / "asked", poison))
                run.accuracy = read_run(place / "asked")
                run.least_accuracy = self._params.least_correct_percent / 100
                if self._params.compare_eager and self._params.graph != "none":
                    self._serve(place / "eager", "none", self._plan(place / "eager", None))
                    run.eager = read_run(place / "eager")
            except KernelError as error:
                run.error = error
            run.log = self._serving.log_tail
        return run

    def first_writer(self, poison: Poison) -> FirstNan:
        """Serve once with the first-NaN recorder in the scheduler. Returns the first writer.

        If SGLang dies before its recorder reports, the result has the reason. Raises HarnessError if SGLang does not
        fail and its scheduler had no recorder.
        """
        with tempfile.TemporaryDirectory() as scratch:
            folder, failure = Path(scratch) / "asked", ""
            plan = self._plan(folder, poison).model_copy(update={"records": True})
            try:
                self._serve(folder, self._params.graph, plan)
            except KernelError as error:
                failure = str(error)
            report = folder / FIRST_NAN.format(rank=0)
            if report.is_file():
                return FirstNan.model_validate_json(report.read_text(encoding="utf-8"))
            if not failure:
                raise HarnessError("no recorder reported, though SGLang did not fail")
            return FirstNan(missing_report=f"SGLang ended before its recorder reported: {failure}")

    def _plan(self, folder: Path, poison: Poison | None) -> Plan:
        """The case's sites in SGLang's memory that the case has and that its backend does not need finite."""
        params, excluded = self._params, set[str]()
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

    def _serve(self, directory: Path, graph: str, plan: Plan) -> None:
        """Run one serving process to its end.

        Raises as `Serving.reply` does, InputError if a scheduler refuses the plan, Refused if SGLang refuses the
        options, and HarnessError if a scheduler lacks poison or fault.
        """
        directory.mkdir(parents=True, exist_ok=True)
        spawns = self._params.process == "spawn"
        forks = None if spawns else self._forks.server(environ(), self._params.timeout_seconds)
        request = ServeRequest(
            options=engine_options(self._params, graph),
            plan=plan,
            task=self._params.task,
            limit=self._params.limit,
            epochs=self._params.epochs,
            max_tokens=self._params.max_tokens,
            directory=str(directory),
            forks=forks is not None,
        )
        seconds, log = self._params.timeout_seconds, directory / "sglang.log"
        try:
            settings = environ(is_faulty=bool(self.fault))
            found = self._serving.reply(QUESTIONS, request, settings, log, seconds, forks)
        except KernelError:
            # SGLang kills the serving process if a scheduler ends, also one that refused the plan or the options.
            raise_refusal(plan)
            raise
        (directory / FILLED_FILE).write_text(json.dumps(found), encoding="utf-8")
        check(plan)
