"""Targets run a case in a worker: the interface of kernels, the reference engine, and real
engines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from torch_poison.patterns import Poison

from harness.core.cases import Case, Job
from harness.core.cause_codes import WhyNot
from harness.core.records import FirstNan
from harness.core.registry import attribute_at
from harness.evidence.records import Run

if TYPE_CHECKING:
    # A trace knows the engine, which a kernel case never needs.
    from harness.judge.probes.trace import Trace


@dataclass(eq=False)
class Target(ABC):
    """One case on one device.

    `fault` is the injected bug, `directory` keeps the progress of a long case.
    """

    case: Case
    device: str = "cpu"
    _: KW_ONLY
    fault: str | None = None
    directory: str | None = None
    gpus: tuple[int, ...] = ()

    injects_faults: ClassVar[bool] = False
    """Whether the target injects the bug into a process of its own.

    Otherwise the worker has the bug.
    """

    @classmethod
    def why_not(cls, case: Case, device: str = "cpu", fault: str | None = None) -> WhyNot | None:
        """Why this machine cannot run `case`, in a sentence; None if it can."""
        return None

    @abstractmethod
    def run(self, poison: Poison) -> Run:
        """Execute the case from its beginning under `poison`; independent of earlier runs."""

    def run_traced(self, poison: Poison, trace: Trace) -> Run:
        """As `run`, with the results of launches noted in `trace` if the target shows its
        launches.
        """
        return self.run(poison)

    @property
    def may_differ(self) -> bool:
        """Whether the device may not repeat its bits.

        If so, a repeated run measures the difference.
        """
        return self.case.kind.shows_launches and self.device != "cpu"

    @property
    def reader(self) -> str:
        """The name of the last reader in a trace, which returns the tensors of a run."""
        return "what hands out the logits"

    def first_writer(self, poison: Poison) -> FirstNan:
        """Run with the first-NaN recorder.

        Returns the writer of the first bad value, also if a crash ends the run.
        """
        raise NotImplementedError(f"the recorder does not watch system {self.case.system}")


def class_of(case: Case) -> type[Target]:
    return cast("type[Target]", attribute_at(case.kind.target))


def target_of(job: Job) -> Target:
    return class_of(job.case)(
        job.case, job.device, fault=job.fault, directory=job.directory, gpus=job.gpus
    )
