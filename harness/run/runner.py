"""Worker processes of this machine: feed them jobs, and turn their deaths and hangs into results."""

from __future__ import annotations

import random
import selectors
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from harness.core.cases import Job
from harness.core.errors import HarnessError, InputError
from harness.core.records import CaseResult, Finding, Verdict
from harness.run.child import MAX_LOG_BYTES, ONE_THREAD, TICK_SECONDS, Child, ChildDied
from harness.run.environment import Environment, num_usable_cores
from harness.run.gpus import GpuLocks
from harness.run.pool import Pool
from harness.run.requests import WorkerRequest

MAX_WORKERS = 4
DESCRIBE_SECONDS = 30.0


class WorkerError(HarnessError):
    """No worker process can be started or used on this machine. Exit code 3."""


class Worker(Child):
    """A worker process of this machine."""

    is_ready = False


def default_num_workers() -> int:
    """One worker for each usable core, at most four: each loads its own torch."""
    return min(MAX_WORKERS, num_usable_cores())


class WorkerPool(Pool):
    """Worker processes of this machine.

    A worker that died is replaced when the next job needs it. A worker that dies before it is ready raises
    WorkerError, because the next one would die as well.
    """

    def __init__(self, num_workers: int | None = None, **options: Any) -> None:
        """The options are as in :class:`Pool`."""
        super().__init__(**options)
        self.num_workers = num_workers or default_num_workers()
        self._workers: list[Worker] = []
        self._selector = selectors.DefaultSelector()
        self._gpus: GpuLocks | None = None
        self._gpu_of: dict[Worker, int] = {}

    def close(self) -> None:
        """End every worker and whatever it started."""
        while self._workers:
            self._retire(self._workers[-1])

    def start(self) -> Environment:
        """See :meth:`Pool.start`."""
        if self.environment is None and not self._workers:
            self._spawn()
        while self.environment is None:
            self._select()
        return self.environment

    def describe_kernels(self, plugins: Sequence[str] = ()) -> list[dict[str, Any]]:
        """See :meth:`Pool.describe_kernels`."""
        self.start()
        worker, what = self._workers[0], f"plug-in {', '.join(plugins)}" if plugins else "installed kernels"
        if not worker.send(WorkerRequest(describe=tuple(plugins)), DESCRIBE_SECONDS):
            raise WorkerError(f"{what}: the worker died before it was asked")
        try:
            result = worker.answer().result
        except ChildDied as died:
            self._retire(worker)
            raise InputError(f"{what}: loading it ended the worker: {died.death.how}") from None
        assert result is not None
        kernels: list[dict[str, Any]] = result["kernels"]
        return kernels

    def run(self, jobs: Sequence[Job], on_start: Callable[[Job], None] | None = None) -> Iterator[CaseResult]:
        """See :meth:`Pool.run`. Jobs that span several GPUs come last, each alone."""
        spanning = [job for job in jobs if job.case.params.num_gpus > 1]
        if not spanning or len(self.start().gpus) < 2:
            # On one GPU, the worker reports that the job needs several.
            yield from self._run(jobs, on_start)
            return
        yield from self._run([job for job in jobs if job.case.params.num_gpus == 1], on_start)
        for job in spanning:
            with self._holding(job.case.params.num_gpus) as gpus:
                yield from self._run([job.model_copy(update={"gpus": gpus})], on_start)

    @contextmanager
    def _holding(self, count: int) -> Iterator[tuple[int, ...]]:
        """Hold `count` GPUs for one job and none for workers; yields () if the machine has fewer."""
        environment = self.start()
        if len(environment.gpus) < count:
            yield ()
            return
        for worker in list(self._gpu_of):
            self._retire(worker)
        self._gpus = self._gpus or GpuLocks(environment.gpus)
        while not (gpus := self._gpus.take(count)):
            time.sleep(TICK_SECONDS * (1.0 + random.random()))
        try:
            yield gpus
        finally:
            for gpu in gpus:
                self._gpus.give_back(gpu)

    def _run(self, jobs: Sequence[Job], on_start: Callable[[Job], None] | None) -> Iterator[CaseResult]:
        waiting = deque(jobs)
        busy: dict[Worker, Job] = {}
        try:
            while waiting or busy:
                self._dispatch(waiting, busy, on_start)
                self._select()
                for worker, job in list(busy.items()):
                    result = self._result_of(worker, job)
                    if result is not None:
                        del busy[worker]
                        yield result
        finally:
            # After an early stop, a busy worker would answer the next run with a result of this one.
            for worker in busy:
                self._retire(worker)

    def _dispatch(self, waiting: deque[Job], busy: dict[Worker, Job], on_start: Callable[[Job], None] | None) -> None:
        for worker in [worker for worker in self._workers if worker not in busy]:
            if worker.is_ready and worker.ended():
                self._retire(worker)
        while len(self._workers) < min(self.num_workers, self._num_useful(waiting) + len(busy)):
            self._spawn()
        for worker in self._workers:
            if waiting and worker not in busy and worker.is_ready:
                job = self._next_for(worker, waiting)
                if job is None:
                    continue
                worker.empty_log()
                gpu = self._gpu_of.get(worker) if job.device == "cuda" else None
                if not worker.send(WorkerRequest(job=job, gpu=gpu), job.timeout_seconds):
                    continue
                waiting.remove(job)
                busy[worker] = job
                if on_start is not None:
                    on_start(job)

    def _num_useful(self, waiting: deque[Job]) -> int:
        """How many workers the waiting jobs can keep busy: each job on CUDA needs its own GPU."""
        on_gpu = sum(job.device == "cuda" for job in waiting)
        num_gpus = 1 if self.environment is None else max(1, len(self.environment.gpus))
        return len(waiting) - on_gpu + min(on_gpu, num_gpus)

    def _next_for(self, worker: Worker, waiting: deque[Job]) -> Job | None:
        """The first waiting job that `worker` can run. For a job on CUDA, the worker locks a GPU and keeps it."""
        on_cpu = next((job for job in waiting if job.device != "cuda"), None)
        on_gpu = next((job for job in waiting if job.device == "cuda"), None)
        if worker in self._gpu_of:
            # Other workers can run the rest, but not on this GPU.
            return on_gpu or on_cpu
        if on_gpu is waiting[0] and self._take_gpu(worker):
            return on_gpu
        return on_cpu

    def _take_gpu(self, worker: Worker) -> bool:
        assert self.environment is not None
        if not self.environment.gpus:
            # The worker reports that there is no GPU.
            return True
        self._gpus = self._gpus or GpuLocks(self.environment.gpus)
        for gpu in self._gpus.take():
            self._gpu_of[worker] = gpu
        return worker in self._gpu_of

    def _result_of(self, worker: Worker, job: Job) -> CaseResult | None:
        """The result of the worker's job, or None while the job runs."""
        reply = worker.take()
        if reply is not None and reply.result is not None:
            try:
                result = CaseResult.model_validate(reply.result)
            except ValueError as error:
                return self._bury(worker, job, f"the worker's answer is not a result: {str(error).splitlines()[0]}")
            if result.key != job.key:
                return self._bury(worker, job, f"the worker answered for another job ({result.key!r})")
            if reply.is_spent:
                # The CUDA context has failed for good; the next case needs a new process.
                self._retire(worker)
            return result
        if worker.ended():
            return self._bury(worker, job, None)
        return None

    def _bury(self, worker: Worker, job: Job, how: str | None) -> CaseResult:
        """End `worker`, and return the crash of its job."""
        death = worker.death()
        self._retire(worker)
        reason, seconds = how or death.how, round(death.seconds, 3)
        message = f"{job.case.id}: {reason}" if job.device == "cuda" else reason
        finding = Finding(oracle="crash", message=message)
        return CaseResult.of(job, Verdict.CRASH, seconds=seconds, reason=reason, findings=(finding,), log=death.log)

    def _select(self) -> None:
        for key, _ in self._selector.select(TICK_SECONDS):
            key.data.read()
        for worker in list(self._workers):
            worker.empty_log(above_bytes=MAX_LOG_BYTES)
            if not worker.is_ready:
                self._check_ready(worker)

    def _check_ready(self, worker: Worker) -> None:
        """Note that a worker is ready. Raises WorkerError if it failed to start."""
        reply = worker.take()
        if reply is not None and reply.ready is not None:
            worker.is_ready = True
            self.environment = self.environment or Environment.model_validate(reply.ready)
        elif reply is not None or worker.ended():
            reason = (reply.refused or reply.failed) if reply else f"{worker.death().how}; {worker.last_line()}"
            self._retire(worker)
            raise WorkerError(f"a worker could not start: {reason} (try `mla-harness doctor`)")

    def _spawn(self) -> None:
        worker = Worker(
            "harness.run.worker",
            self._execute,
            name="the worker",
            environ={**self._environ, **ONE_THREAD},
            seconds=self._start_seconds,
        )
        self._workers.append(worker)
        self._selector.register(worker.fileno(), selectors.EVENT_READ, worker)

    def _retire(self, worker: Worker) -> None:
        if worker in self._workers:
            self._workers.remove(worker)
            self._selector.unregister(worker.fileno())
        worker.close()
        gpu = self._gpu_of.pop(worker, None)
        if gpu is not None and self._gpus is not None:
            self._gpus.give_back(gpu)
