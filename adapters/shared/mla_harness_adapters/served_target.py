"""An engine as a target: its processes serve one canary, which answers a task under poison, with or
without a fault.

Plan, report and refusals are the same for all engines. An adapter says what differs, as data: the
memory that it can fill, the name of a rank's process, the errors with which the engine checks its
options, and what releases and GPUs do not serve.
"""

from __future__ import annotations

import contextlib
import tempfile
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch_poison.patterns import Poison

from harness.api import (
    Answered,
    Case,
    Child,
    ChildDied,
    Code,
    Count,
    EngineSpec,
    FirstNan,
    Forks,
    HarnessError,
    InputError,
    KernelError,
    Refused,
    Run,
    Target,
    WhyNot,
    why_packages_missing,
)
from mla_harness_adapters import base
from mla_harness_adapters.patches import Patches
from mla_harness_adapters.plan import Plan, ServedMemory
from mla_harness_adapters.refusals import OptionErrors, clear
from mla_harness_adapters.releases import NotServed
from mla_harness_adapters.report import Report, first_nan_of_ranks
from mla_harness_adapters.served_params import ServedParams
from mla_harness_adapters.serving import (
    CAUSE_BYTES,
    FORK_ENVIRON,
    NAMED,
    STARTED,
    ServingProcess,
    last_words,
    waits_for,
)

NEEDED = ("lm_eval", "scipy", "httpx", "safetensors", "tokenizers")
"""Packages of the extra `accuracy`, which ask the questions."""


@dataclass(frozen=True, slots=True)
class BuiltFor:
    """The major compute capabilities of the GPUs that a backend is built for, and their name."""

    majors: tuple[int, ...]
    words: str


class ServedTarget(Target):
    """Serves a case's canary for each poison pattern, and without graphs to compare the answers."""

    injects_faults = True
    engine: ClassVar[EngineSpec]
    patches: ClassVar[Patches]
    memory: ClassVar[ServedMemory]
    option_errors: ClassVar[OptionErrors]
    process_name: ClassVar[str]
    """What the engine calls the process of a rank."""
    not_served: ClassVar[tuple[NotServed, ...]] = ()
    built_for: ClassVar[Mapping[str, BuiltFor]] = {}
    """Backends that do not run on every GPU."""
    _forks: ClassVar[Forks | None] = None
    """None for an engine with imports that start the CUDA driver: a CUDA context does not survive a
    fork.
    """

    def __init__(self, case: Case, device: str = "cpu", **more: Any) -> None:
        super().__init__(case, device, **more)
        self._served = case.params_as(ServedParams)
        self._log_tail = ""
        self._report = Report(ranks=())
        self._told: dict[str, Any] = {}
        """The reply of the last process that served the case."""

    @classmethod
    def why_not(cls, case: Case, device: str = "cpu", fault: str | None = None) -> WhyNot | None:
        if reason := base.why_not_installed(cls.engine):
            return reason
        if reason := cls._why_no_device(case):
            return reason
        if reason := why_packages_missing(NEEDED):
            return reason
        checkpoint = case.params_as(ServedParams).checkpoint
        if not (checkpoint / "config.json").is_file():
            return WhyNot(f"{checkpoint} is not there: train one with `canary train`")
        version = str(base.installed_version(cls.engine))
        return cls._why_refused(case, version) or cls.patches.why_not(fault, version)

    @classmethod
    def _why_no_device(cls, case: Case) -> WhyNot | None:
        """Why this machine has not the devices that the case is served on; None if it has."""
        if not torch.cuda.is_available():
            why = f"{cls.engine.title} serves on CUDA, and there is no CUDA device on this machine"
            return WhyNot.no_gpu(why)
        if (seen := torch.cuda.device_count()) < case.params.num_gpus > 1:
            needed = f"{case.params.num_gpus} GPUs"
            return WhyNot(
                f"needs {needed}; this machine shows {seen}", Code.NO_DEVICE, lacks=needed
            )
        return None

    @classmethod
    def _why_refused(cls, case: Case, version: str) -> WhyNot | None:
        """Why this release does not serve the case on this machine; None if it does."""
        backend = str(case.values()["backend"])
        built = cls.built_for.get(backend)
        if built and (reason := base.why_not_built(built.majors, built.words)):
            return WhyNot(f"{backend} is {reason}", Code.NO_DEVICE, lacks=reason.lacks)
        return NotServed.why_not(cls.not_served, cls.engine.title, version, case.params)

    @abstractmethod
    def excluded_sites(self) -> set[str]:
        """Sites that the case does not have, or that its backend needs finite."""

    @abstractmethod
    def _process(self, plan: Plan, *, is_eager: bool) -> ServingProcess:
        """The process that serves the case with a plan, without graphs if `is_eager`."""

    def plan(self, folder: Path, poison: Poison, *, is_eager: bool = False) -> Plan:
        """What the processes install that serve the case, without graphs if `is_eager`."""
        return Plan(
            folder=str(folder),
            poison=self.memory.poison(poison, self.excluded_sites()),
            fault=self.fault or "",
        )

    def _serve(
        self, folder: Path, poison: Poison, *, is_eager: bool = False, records: bool = False
    ) -> None:
        """Run one serving process to its end, without graphs if `is_eager`, with recorders of the
        first NaN on request.

        Raises as `reply_of` does, Refused if the engine refuses its options, InputError for a fault
        that does not fit, and HarnessError if a process lacks what the plan has.
        """
        folder.mkdir(parents=True, exist_ok=True)
        # An earlier run of the case may have left them.
        clear(folder)
        plan = self.plan(folder, poison, is_eager=is_eager).but(records=records)
        try:
            told = self.reply_of(self._process(plan, is_eager=is_eager), folder)
        except KernelError as error:
            raise self._refusal(folder, error) from None
        self._told = told
        self._report = Report.of(told["ranks"])
        self._report.keep(folder)
        self._report.check(plan, self.memory, self._served.num_gpus, self.process_name)

    def _refusal(self, folder: Path, error: KernelError) -> Exception:
        """The refusal that a process noted before it failed with `error`, or `error` itself.

        An engine with ranks in processes without a hook of the harness has them in its log alone.
        """
        if noted := self.option_errors.found_in(folder):
            return noted
        if not self.has_bare_ranks:
            return error
        log = (folder / f"{self.engine.name}.log").read_text(encoding="utf-8", errors="replace")
        # Options are checked at the start. A later error of the same name is a crash.
        return error if STARTED in log else self.option_errors.of_log(error) or error

    @property
    def has_bare_ranks(self) -> bool:
        """Whether ranks check options in processes where no refusal can be noted."""
        return False

    def run(self, poison: Poison) -> Run:
        """Ask all questions.

        A process that dies or raises is the run's error, with the end of the engine's log.
        """
        run = Run(poison.pattern)
        with tempfile.TemporaryDirectory() as scratch:
            try:
                self._ask(run, Path(self.directory or scratch) / poison.pattern, poison)
            except KernelError as error:
                run.error = error
            run.log = self._log_tail
        return run

    def _ask(self, run: Run, folder: Path, poison: Poison) -> None:
        self._serve(folder / "asked", poison)
        answered = Answered.read(folder / "asked", self._served.least_correct_percent / 100)
        run.evidence.append(answered)
        if self._served.has_module:
            run.evidence += self._verified(answered)
        if self._served.compare_eager and self._served.has_graph:
            try:
                self._serve(folder / "eager", poison, is_eager=True)
            except Refused as refusal:
                # The answers with graphs are judged all the same.
                run.refusal = refusal
                return
            answered.eager = Answered.read(folder / "eager").results

    def _verified(self, answered: Answered) -> list[Count]:
        """The drafts of each epoch, as the engine counts them.

        Raises HarnessError if it counts none.
        """
        epochs = answered.accepted_drafts()
        if len(epochs) < self._served.epochs:
            raise HarnessError(f"{self.engine.title} counts no drafts, though its module drafts")
        return epochs

    def first_writer(self, poison: Poison) -> FirstNan:
        """Serve once with the first-NaN recorder in every worker.

        Returns the first writer over all ranks.

        If the engine dies before its recorders report, the result has the reason. Raises
        HarnessError if it does not fail and a worker had no recorder.
        """
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "asked"
            failure = ""
            try:
                self._serve(folder, poison, records=True)
            except KernelError as error:
                failure = str(error)
            return first_nan_of_ranks(folder, self._served.num_gpus, self.engine.title, failure)

    def reply_of(self, process: ServingProcess, folder: Path) -> dict[str, Any]:
        """The reply of a serving process, whose log is written to the folder.

        It is a fork of the process with the engine's imports where the case and the release allow
        it. Raises InputError if it refuses, and KernelError if it fails or dies.
        """
        title = self.engine.title
        seconds = self._served.timeout_seconds
        log = folder / f"{self.engine.name}.log"
        name = f"{title}'s process"
        environ = dict(process.environ)
        forks = None
        if (
            self._forks is not None
            and process.fork_environ is not None
            and self._served.process == "fork"
        ):
            forks = self._forks.server(dict(process.fork_environ) | FORK_ENVIRON, seconds)
        with Child(process.module, name=name, forks=forks, environ=environ, log=log) as child:
            child.send(process.request, seconds)
            reply = None
            with contextlib.suppress(ChildDied):
                reply = child.receive()
            if reply is None or reply.failed is not None:
                death = child.death()
                how = f"{name} {death.ended}"
            printed = child.printed(CAUSE_BYTES)
            self._log_tail = child.log()
            cause = last_words(printed)
        if reply is None or reply.failed is not None:
            if death.is_hang:
                hung = (
                    f"{title} hung: no end after {seconds} s,"
                    f" {waits_for(printed, self._served.num_gpus)}"
                )
                known = self._known_to_hang(environ)
                raise KernelError("; ".join(filter(None, [hung, known])), **death.as_cause)
            # The log of the engine is the one place that names the exception.
            named = NAMED.search(cause)
            ended = {"cause": Code.RAISED, "error": named[0]} if named else death.as_cause
            raise KernelError(f"{how}: {cause[-300:]}", **ended)
        if reply.result is None:
            raise InputError(reply.refused)
        return reply.result

    def _known_to_hang(self, settings: dict[str, str]) -> str:
        """Which of the settings are known to hang, for the message of a hang; empty if none is."""
        return ""
