"""Cases in this process, for a debugger:

`mla-harness run -n 0`. Nothing contains a crash or a hang of a kernel.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any

from harness.core.cases import CellOf, Job
from harness.core.records import CaseResult
from harness.core.registry import attribute_at
from harness.run.child import TICK_SECONDS
from harness.run.environment import Environment, describe_machine
from harness.run.gpus import GpuLocks
from harness.run.pool import JobPool
from harness.run.requests import WorkerRequest
from harness.run.runner import WorkerError
from harness.run.worker import DESCRIBE, reply_to


class InProcessPool(JobPool):
    """Runs one case after the other in this process, without a time limit.

    What kernels print is not recorded.
    """

    num_workers = 1
    _gpus: GpuLocks | None = None
    _gpu: int | None = None

    def close(self) -> None:
        if self._gpus is not None and self._gpu is not None:
            self._gpus.give_back(self._gpu)
            self._gpu = None

    def start(self) -> Environment:
        if self.environment is None:
            import torch

            # As in a worker: with other threads a sum may have other last bits than in the run.
            torch.set_num_threads(1)
            self.environment = describe_machine()
        return self.environment

    def describe_kernels(
        self, plugins: Sequence[str] = (), cell: CellOf | None = None
    ) -> list[dict[str, Any]]:
        self.start()
        return list(attribute_at(DESCRIBE)(tuple(plugins), cell))

    def _run(
        self, waiting: deque[Job], on_start: Callable[[Job], None] | None
    ) -> Generator[CaseResult]:
        """See :meth:`JobPool._run`.

        Raises KeyboardInterrupt for Ctrl-C, and WorkerError once CUDA has failed for good.
        """
        self.start()
        while waiting:
            job = waiting.popleft()
            if on_start is not None:
                on_start(job)
            gpu = self._own_gpu() if job.device == "cuda" else None
            reply = reply_to(WorkerRequest(job=job, gpu=gpu), attribute_at(self._execute))
            result = CaseResult.model_validate(reply.result)
            if any(
                finding.error in ("KeyboardInterrupt", "BdbQuit") for finding in result.findings
            ):
                # The user pressed Ctrl-C in a kernel, or left the debugger.
                raise KeyboardInterrupt
            yield result
            if reply.is_spent:
                raise WorkerError(f"{job.case.id}: CUDA failed for good in this process")

    def _own_gpu(self) -> int | None:
        """The GPU that this process locks with its first case on CUDA; None without GPUs."""
        gpus = self.start().gpus
        if self._gpu is None and gpus:
            self._gpus = self._gpus or GpuLocks(gpus)
            while not (taken := self._gpus.take()):
                time.sleep(TICK_SECONDS)
            (self._gpu,) = taken
        return self._gpu
