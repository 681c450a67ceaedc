"""The parent's side: feeds jobs to worker processes and turns their deaths and hangs into results. Imports no torch."""

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
from harness.run.child import ONE_THREAD, TICK_SECONDS, Child, ChildDied
from harness.run.environment import Environment, num_usable_cores
from harness.run.gpus import GpuLocks
from harness.run.pool import Pool
from harness.run.requests import WorkerRequest
from harness.run.worker import DEFAULT_EXECUTE

MAX_WORKERS = 4
DESCRIBE_SECONDS = 30.0


class WorkerError(HarnessError):
    """A worker process cannot be started or used at all; nothing can run on this machine. Exit code 3."""


class Worker(Child):
    """A worker process of this machine."""

    is_ready = False


def default_num_workers() -> int:
    """As many workers as usable cores, at most four: each holds its own torch."""
    return min(MAX_WORKERS, num_usable_cores())


class WorkerPool(Pool):
    """Worker processes of this machine.

    A worker that died is replaced when the next job needs it; one that dies before
    it was ready raises WorkerError instead, because its successor would die as well.
    """

    def __init__(
        self,
        num_workers: int | None = None,
        *,
        execute: str = DEFAULT_EXECUTE,
        environ: dict[str, str] | None = None,
        start_timeout_seconds: float = 180.0,
    ) -> None:
        self.num_workers = num_workers or default_num_workers()
        self.environment: Environment | None = None
        self._execute = execute
        self._environ = environ
        self._start_timeout_seconds = start_timeout_seconds
        self._workers: list[Worker] = []
        self._selector = selectors.DefaultSelector()
        self._gpus: GpuLocks | None = None
        self._gpu_of: dict[Worker, int] = {}

    def close(self) -> None:
        """End every worker and whatever it started."""
        while self._workers:
            self._retire(self._workers[-1])

    def start(self) -> Environment:
        """Wait until one worker is ready and return what this machine is. Raises WorkerError with the reason."""
        if self.environment is None:
            if not self._workers:
                self._spawn()
            self._wait_until_ready(self._workers[0])
        assert self.environment is not None
        return self.environment

    def describe_kernels(self, plugins: Sequence[str] = ()) -> list[dict[str, Any]]:
        """What the kernels of plug-in files declare, or, without files, all kernels; with `why_not` by device.

        Raises InputError when a file does not load, also when loading it kills or hangs the worker.
        """
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
        """Yield one result for each job, as they end.

        The worker that produced a result gets its next job only when the caller asks for the next result: what the
        caller does with a result (writing it to disk) is done before more work starts there.
        Jobs that span several GPUs come last, each alone.
        """
        spanning = [job for job in jobs if job.case.params.num_gpus > 1]
        if not spanning or len(self.start().gpus) < 2:
            # On one GPU, whoever runs a job that spans several says so.
            yield from self._run(jobs, on_start)
            return
        yield from self._run([job for job in jobs if job.case.params.num_gpus == 1], on_start)
        for job in spanning:
            with self._holding(job.case.params.num_gpus) as gpus:
                yield from self._run([job.model_copy(update={"gpus": gpus})], on_start)

    @contextmanager
    def _holding(self, count: int) -> Iterator[tuple[int, ...]]:
        """Several GPUs for one job, while no worker of this session has any; none where the machine has fewer."""
        environment = self.start()
        if len(environment.gpus) < count:
            yield ()
            return
        for worker in list(self._gpu_of):
            self._retire(worker)
        self._gpus = self._gpus or GpuLocks(environment.gpus)
        while not (gpus := self._gpus.take_several(count)):
            time.sleep(TICK_SECONDS * (1.0 + random.random()))
        try:
            yield gpus
        finally:
            for gpu in gpus:
                self._gpus.give_back(gpu)

    def _run(self, jobs: Sequence[Job], on_start: Callable[[Job], None] | None) -> Iterator[CaseResult]:
        """As `run`, for jobs that need one GPU at most or hold theirs."""
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
            # Whoever stops early leaves no worker that would answer the next run with this one's results.
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
                gpu = self._gpu_of.get(worker) if job.device == "cuda" else None
                worker.empty_log()
                if not worker.send(WorkerRequest(job=job, gpu=gpu), job.timeout_seconds):
                    continue
                waiting.remove(job)
                busy[worker] = job
                if on_start is not None:
                    on_start(job)

    def _num_useful(self, waiting: deque[Job]) -> int:
        """How many workers the waiting jobs can keep busy: those on CUDA need a GPU each."""
        on_gpu = sum(job.device == "cuda" for job in waiting)
        num_gpus = 1 if self.environment is None else max(1, len(self.environment.gpus))
        return len(waiting) - on_gpu + min(on_gpu, num_gpus)

    def _next_for(self, worker: Worker, waiting: deque[Job]) -> Job | None:
        """The first waiting job that `worker` can run; one on CUDA needs a GPU of its own, which the worker keeps."""
        can_use_gpu: bool | None = True if worker in self._gpu_of else None
        if can_use_gpu:
            # Others can do the rest; nobody else has this GPU.
            mine = next((job for job in waiting if job.device == "cuda"), None)
            return mine or waiting[0]
        for job in waiting:
            if job.device != "cuda":
                return job
            if can_use_gpu is None:
                can_use_gpu = self._take_gpu(worker)
            if can_use_gpu:
                return job
        return None

    def _take_gpu(self, worker: Worker) -> bool:
        assert self.environment is not None
        if not self.environment.gpus:
            # No GPU: whoever runs the job says so.
            return True
        if self._gpus is None:
            self._gpus = GpuLocks(self.environment.gpus)
        gpu = self._gpus.take()
        if gpu is not None:
            self._gpu_of[worker] = gpu
        return gpu is not None

    def _result_of(self, worker: Worker, job: Job) -> CaseResult | None:
        """The result of the job that `worker` has, when it has ended one way or another."""
        reply = worker.take()
        if reply is not None and reply.result is not None:
            try:
                result = CaseResult.model_validate(reply.result)
            except ValueError as error:
                return self._bury(worker, job, f"the worker's answer is not a result: {str(error).splitlines()[0]}")
            if result.key != job.key:
                return self._bury(worker, job, f"the worker answered for another job ({result.key!r})")
            if reply.is_spent:
                # An illegal access stays with the CUDA context; the next case needs a new process.
                self._retire(worker)
            return result
        if worker.ended():
            return self._bury(worker, job, None)
        return None

    def _bury(self, worker: Worker, job: Job, how: str | None) -> CaseResult:
        """End `worker` and make the crash that its job ended in."""
        death = worker.death()
        self._retire(worker)
        reason = how or death.how
        message = f"{job.case.id}: {reason}" if job.device == "cuda" else reason
        return CaseResult.of(
            job, Verdict.CRASH, seconds=round(death.seconds, 3), reason=reason,
            findings=(Finding(oracle="crash", message=message),), log=death.log,
        )  # fmt: skip

    def _select(self) -> None:
        for key, _ in self._selector.select(TICK_SECONDS):
            key.data.read()
        for worker in list(self._workers):
            worker.keep_log_small()
            if not worker.is_ready:
                self._note_ready(worker)
                if not worker.is_ready and worker.ended():
                    self._give_up(worker)

    def _note_ready(self, worker: Worker) -> None:
        reply = worker.take()
        if reply is not None and reply.ready is None:
            self._retire(worker)
            raise WorkerError(f"a worker could not start: {reply.refused or reply.failed} (try `mla-harness doctor`)")
        if reply is not None:
            worker.is_ready = True
            self.environment = self.environment or Environment.model_validate(reply.ready)

    def _wait_until_ready(self, worker: Worker) -> None:
        while not worker.is_ready:
            self._select()

    def _give_up(self, worker: Worker) -> None:
        reason = f"{worker.death().how}; {worker.last_line()}"
        self._retire(worker)
        raise WorkerError(f"a worker could not start: {reason} (try `mla-harness doctor`)")

    def _spawn(self) -> None:
        worker = Worker(
            "harness.run.worker",
            self._execute,
            name="the worker",
            environ={**(self._environ or {}), **ONE_THREAD},
            seconds=self._start_timeout_seconds,
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
