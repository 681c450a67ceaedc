"""The interface of a pool of workers, on this machine or a cluster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any, Self

from harness.core.cases import CellOf, Job
from harness.core.records import CaseResult
from harness.run.environment import Environment
from harness.run.worker import DEFAULT_EXECUTE


class JobPool(ABC):
    """Worker processes that live until `close`; use it as a context manager.

    `run` may be called many times.
    """

    num_workers: int
    """How many jobs can run at one time."""

    def __init__(
        self,
        *,
        execute: str = DEFAULT_EXECUTE,
        environ: dict[str, str] | None = None,
        start_seconds: float = 600.0,
    ) -> None:
        """Workers call `execute` ("module:function"), have `environ` beside their own, and start in
        `start_seconds`.
        """
        self.environment: Environment | None = None
        self.num_done = 0
        """Results of all cases so far."""
        self.latest = ""
        """The id of the case that was started last."""
        self._execute = execute
        self._environ = environ or {}
        self._start_seconds = start_seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End every worker and whatever it started."""

    @abstractmethod
    def start(self) -> Environment:
        """Wait until one worker is ready, and describe its machine.

        Raises WorkerError if no worker can start.
        """

    @abstractmethod
    def describe_kernels(
        self, plugins: Sequence[str] = (), cell: CellOf | None = None
    ) -> list[dict[str, Any]]:
        """The declarations of the kernels in plug-in files, or of all kernels without files, with
        `why_not` by device. With `cell`, the files are loaded there.

        Raises InputError if a file does not load, kills the worker or hangs it.
        """

    def run(
        self, jobs: Sequence[Job], on_start: Callable[[Job], None] | None = None
    ) -> Generator[CaseResult]:
        """Yield one result for each job, as they end.

        A worker gets its next job only after the caller asked for the next result, so a caller can
        write a result to disk before that worker goes on. Of a deque, the caller may also take jobs
        out that have not begun: it is emptied as they begin.
        """

        def started(job: Job) -> None:
            self.latest = job.case.id
            if on_start is not None:
                on_start(job)

        waiting = jobs if isinstance(jobs, deque) else deque(jobs)
        with closing(self._run(waiting, started)) as results:
            for result in results:
                self.num_done += 1
                yield result

    @abstractmethod
    def _run(
        self, waiting: deque[Job], on_start: Callable[[Job], None] | None
    ) -> Generator[CaseResult]:
        """Take jobs from `waiting` until it is empty, and yield their results."""

    def run_in_order(self, jobs: Sequence[Job]) -> list[CaseResult]:
        """All results, in the order of the jobs."""
        found = {result.key: result for result in self.run(jobs)}
        return [found[job.key] for job in jobs]
