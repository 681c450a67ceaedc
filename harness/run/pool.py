"""What carries out jobs, wherever its worker processes are: the promise that plans, blame and shrinking rely on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from harness.core.cases import Job
from harness.core.records import CaseResult
from harness.run.environment import Environment


class Pool(ABC):
    """Worker processes that live until `close`; use it as a context manager. `run` may be called many times."""

    num_workers: int
    """Jobs that are carried out at one time, at most."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End every worker and whatever it started."""

    @abstractmethod
    def start(self) -> Environment:
        """Wait until one worker is ready and return what its machine is. Raises WorkerError with the reason."""

    @abstractmethod
    def describe_kernels(self, plugins: Sequence[str] = ()) -> list[dict[str, Any]]:
        """What the kernels of plug-in files declare, or, without files, all kernels; with `why_not` by device.

        Raises InputError when a file does not load, also when loading it kills or hangs the worker.
        """

    @abstractmethod
    def run(self, jobs: Sequence[Job], on_start: Callable[[Job], None] | None = None) -> Iterator[CaseResult]:
        """Yield one result for each job, as they end.

        The worker that produced a result gets its next job only when the caller asks for the next result: what the
        caller does with a result (writing it to disk) is done before more work starts there.
        """

    def run_in_order(self, jobs: Sequence[Job]) -> list[CaseResult]:
        """All results, in the order of the jobs whatever the number of workers."""
        found = {result.key: result for result in self.run(jobs)}
        return [found[job.key] for job in jobs]
