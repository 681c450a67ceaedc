"""An engine as a target: its processes serve one canary, which answers a task under poison, with or
without a fault.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from abc import abstractmethod
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
    Record,
    Refused,
    Run,
    Target,
    WhyNot,
    why_packages_missing,
)
from mla_harness_adapters import base
from mla_harness_adapters.patches import Patches
from mla_harness_adapters.served_params import ServedParams
from mla_harness_adapters.serving import (
    CAUSE_BYTES,
    FIRST_NAN_FILE,
    FORK_ENVIRON,
    NAMED,
    last_words,
    waits_for,
)

NEEDED = ("lm_eval", "scipy", "httpx", "safetensors", "tokenizers")
"""Packages of the extra `accuracy`, which ask the questions."""
FILLED_FILE = "poison.json"
"""What the poison of the workers filled, in the folder of the answers."""
PATTERNS = ("nan", "max")
"""Patterns of a scenario that the hooks fill. Any other leaves memory as it is."""


class ServedTarget(Target):
    """Serves a case's canary for each poison pattern, and without graphs to compare the answers."""

    injects_faults = True
    engine: ClassVar[EngineSpec]
    patches: ClassVar[Patches]
    _forks: ClassVar[Forks | None] = None
    """None for an engine with imports that start the CUDA driver: a CUDA context does not survive a
    fork.
    """

    def __init__(self, case: Case, device: str = "cpu", **more: Any) -> None:
        super().__init__(case, device, **more)
        self._served = case.params_as(ServedParams)
        self._log_tail = ""

    @classmethod
    def why_not(cls, case: Case, device: str = "cpu", fault: str | None = None) -> WhyNot | None:
        if reason := base.why_not_installed(cls.engine):
            return reason
        if not torch.cuda.is_available():
            why = f"{cls.engine.title} serves on CUDA, and there is no CUDA device on this machine"
            return WhyNot(why, Code.NO_DEVICE)
        if (seen := torch.cuda.device_count()) < case.params.num_gpus > 1:
            return WhyNot(
                f"needs {case.params.num_gpus} GPUs; this machine shows {seen}", Code.NO_DEVICE
            )
        if reason := why_packages_missing(NEEDED):
            return reason
        checkpoint = case.params_as(ServedParams).checkpoint
        if not (checkpoint / "config.json").is_file():
            return WhyNot(f"{checkpoint} is not there: train one with `canary train`")
        version = str(base.installed_version(cls.engine))
        return cls._why_refused(case, version) or cls.patches.why_not(fault, version)

    @classmethod
    @abstractmethod
    def _why_refused(cls, case: Case, version: str) -> WhyNot | None:
        """Why this release does not serve the case on this machine; None if it does."""

    @abstractmethod
    def _serve(
        self, folder: Path, poison: Poison, *, is_eager: bool = False, records: bool = False
    ) -> None:
        """Run one serving process to its end, without graphs if `is_eager`, with recorders of the
        first NaN on request.

        Raises as `_reply` does, Refused if the engine refuses its options, InputError for a fault
        that does not fit, and HarnessError if a worker lacks what the case is about.
        """

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
            return collected(folder, self._served.num_gpus, self.engine.title, failure)

    def _questions(self, folder: Path) -> dict[str, Any]:
        """The fields of a :class:`mla_harness_adapters.serving.ServeRequest`.

        Makes the folder for the answers.
        """
        folder.mkdir(parents=True, exist_ok=True)
        return self._served.model_dump(include={"task", "limit", "epochs", "max_tokens"}) | {
            "directory": str(folder)
        }

    def _reply(
        self,
        module: str,
        request: Record,
        settings: dict[str, str],
        folder: Path,
        fork_settings: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        """The reply of the serving process.

        With `fork_settings`, the environment of the process that imports the engine once, it is a
        fork of that process where the case and the release allow it. Raises InputError if it
        refuses, and KernelError if it fails or dies.
        """
        title = self.engine.title
        seconds = self._served.timeout_seconds
        log = folder / f"{self.engine.name}.log"
        name = f"{title}'s process"
        forks = None
        if self._forks is not None and fork_settings is not None and self._served.process == "fork":
            forks = self._forks.server(fork_settings | FORK_ENVIRON, seconds)
        with Child(module, name=name, forks=forks, environ=settings, log=log) as child:
            child.send(request, seconds)
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
                known = self._known_to_hang(settings)
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


def keep_filled(folder: Path, filled: dict[str, Any]) -> None:
    (folder / FILLED_FILE).write_text(json.dumps(filled), encoding="utf-8")


def collected(folder: Path, num_ranks: int, title: str, failure: str = "") -> FirstNan:
    """The first writer over all ranks, from the reports of their recorders in `folder`.

    `failure` is how the engine failed, if it did. Then reports may be missing. Raises HarnessError
    if a report is missing without a failure, because that rank ran without the recorder.
    """
    files = [folder / FIRST_NAN_FILE.format(rank=rank) for rank in range(num_ranks)]
    reports = [
        FirstNan.model_validate_json(file.read_text(encoding="utf-8"))
        for file in files
        if file.is_file()
    ]
    missing = ", ".join(str(rank) for rank, file in enumerate(files) if not file.is_file())
    if missing and not failure:
        raise HarnessError(f"no recorder reported from rank {missing}, though {title} did not fail")
    who = f"rank {missing}" if num_ranks > 1 else title
    missing_report = f"{who} ended before its recorder reported: {failure}" if missing else ""
    if not reports:
        return FirstNan(num_ranks=num_ranks, missing_report=missing_report)
    return FirstNan.of_ranks(reports).model_copy(
        update={"num_ranks": num_ranks, "missing_report": missing_report}
    )
