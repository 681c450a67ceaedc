"""Worker processes of this machine: feed them jobs, and turn their deaths and hangs into
results.
"""

from __future__ import annotations

import random
import selectors
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Self

from harness.core.cases import CellOf, Job
from harness.core.crash_stack import user_frame
from harness.core.errors import HarnessError, InputError
from harness.core.findings import Finding
from harness.core.records import BAD, CaseResult, Verdict
from harness.run.child import MAX_LOG_BYTES, ONE_THREAD, TICK_SECONDS, Child, ChildDied
from harness.run.compiling import Compiling
from harness.run.environment import Environment, num_usable_cores
from harness.run.fork_server import Forks
from harness.run.gpus import GpuLocks
from harness.run.pool import JobPool
from harness.run.requests import WorkerRequest
from harness.run.worker import PREPARE

MAX_WORKERS = 4
MAX_SPARES = 2
"""Spare workers for each GPU, or for the CPU, once a worker there was lost.

A machine of few cores has one.
"""
CORES_FOR_EARLY_SPARES = 8
"""On a machine with so many cores the spares of a GPU start with its first worker:

CUDA takes seconds to start.
"""
DESCRIBE_SECONDS = 600.0
"""How long plug-ins may take to load. Engines and their kernels take a minute on a busy machine."""


class WorkerError(HarnessError):
    """No worker process can be started or used on this machine. Exit code 3."""


MAX_STARTS = 3
"""How often a worker is started that a signal ends before it is ready.

It may have come from outside.
"""


class Worker(Child):
    is_ready = False
    imported: tuple[str, ...] = ()
    """The foreign code that it has imported. It runs no case with other code."""


def default_num_workers() -> int:
    """One worker for each usable core, at most four: each loads its own torch."""
    return min(MAX_WORKERS, num_usable_cores())


class WorkerPool(JobPool):
    """Worker processes of this machine.

    A spare worker takes the place of a worker that a case took down, so that the next case need not
    wait for torch and CUDA. Spares start in the background when the first worker is lost; on a
    large machine, with the first job for a GPU. They share the GPU of the lost worker and its lock.
    A worker that cannot start raises WorkerError, because the next one could not either. One that a
    signal ends before it is ready is started again, MAX_STARTS times in a row.

    A worker that has imported plug-ins runs no case with others, and none without. Where a fork
    starts in no time, each case whose plug-ins are imported quickly gets a worker of its own.
    """

    def __init__(self, num_workers: int | None = None, per_gpu: int = 1, **options: Any) -> None:
        """`per_gpu` workers share a GPU. The options are as in :class:`JobPool`."""
        super().__init__(**options)
        # On a machine of few cores the shares of a GPU would otherwise be more than there are
        # workers.
        self.num_workers = num_workers or max(per_gpu, default_num_workers())
        self._per_gpu = per_gpu
        self._workers: list[Worker] = []
        self._selector = selectors.DefaultSelector()
        self._compiling = Compiling()
        self._gpus: GpuLocks | None = None
        self._gpu_of: dict[Worker, int] = {}
        self._spares: defaultdict[int | None, list[Worker]] = defaultdict(list)
        # Workers in a row that a signal ended before they were ready.
        self._num_killed = 0
        # What takes seconds is imported once; forks share its memory until they write there.
        imports = ("torch", PREPARE.get(self._execute, self._execute.partition(":")[0]))
        # Elsewhere each worker imports by itself.
        self._forks = (
            Forks(imports, name="the process that imports torch")
            if sys.platform == "linux"
            else None
        )

    def __enter__(self) -> Self:
        """Begin what takes seconds, so that torch is imported while the run is planned."""
        if self._forks is not None:
            self._forks.begin(self._variables, self._start_seconds)
        return super().__enter__()

    @property
    def _variables(self) -> dict[str, str]:
        """What a worker has beside the environment of this process."""
        return {**self._environ, **ONE_THREAD}

    def close(self) -> None:
        for worker in self._all():
            self._retire(worker)
        if self._forks is not None:
            self._forks.close()

    def _all(self) -> list[Worker]:
        return [*self._workers, *(spare for spares in self._spares.values() for spare in spares)]

    def start(self) -> Environment:
        if self.environment is None:
            self._first_ready()
        assert self.environment is not None
        return self.environment

    def _first_ready(self) -> Worker:
        while not (ready := [worker for worker in self._workers if worker.is_ready]):
            if not self._workers:
                self._workers.append(self._spawn())
            self._select()
        return ready[0]

    def describe_kernels(
        self, plugins: Sequence[str] = (), cell: CellOf | None = None
    ) -> list[dict[str, Any]]:
        what = f"plug-in {', '.join(plugins)}" if plugins else "installed kernels"
        for _ in range(MAX_STARTS):
            worker = self._first_ready()
            if worker.send(WorkerRequest(describe=tuple(plugins), cell=cell), DESCRIBE_SECONDS):
                break
            self._retire(worker)
        else:
            raise WorkerError(f"{what}: {MAX_STARTS} workers died before they were asked")
        try:
            result = worker.answer().result
        except ChildDied as died:
            raise InputError(f"{what}: loading it ended the worker: {died.death.how}") from None
        finally:
            if cell is None:
                # It has imported foreign code.
                self._retire(worker)
        assert result is not None
        return list(result["kernels"])

    def _run(
        self, waiting: deque[Job], on_start: Callable[[Job], None] | None
    ) -> Generator[CaseResult]:
        """See :meth:`JobPool._run`. Jobs that span several GPUs come last, each alone."""
        # Last, because each needs its GPUs whole: all workers that hold one must end first.
        spanning = [job for job in waiting if job.case.params.num_gpus > 1]
        if not spanning or len(self.start().gpus) < 2:
            # On one GPU, the worker reports that the job needs several.
            yield from self._feed(waiting, on_start)
            return
        for job in spanning:
            waiting.remove(job)
        yield from self._feed(waiting, on_start)
        waiting.extend(spanning)
        while waiting:
            job = waiting.popleft()
            with self._holding(job.case.params.num_gpus) as gpus:
                yield from self._feed(deque([job.but(gpus=gpus)]), on_start)

    @contextmanager
    def _holding(self, count: int) -> Iterator[tuple[int, ...]]:
        """Hold `count` GPUs for one job and none for workers; yields () if the machine has
        fewer.
        """
        environment = self.start()
        if len(environment.gpus) < count:
            yield ()
            return
        # Workers hold shares of the GPUs that the job needs whole.
        for worker in list(self._gpu_of):
            self._retire(worker)
        self._gpus = self._gpus or GpuLocks(environment.gpus, shares=self._per_gpu)
        while not (gpus := self._gpus.take(count)):
            # At random, or two runs that wait for each other's GPUs would always try at the same
            # moment.
            time.sleep(TICK_SECONDS * (1.0 + random.random()))
        try:
            yield gpus
        finally:
            for gpu in gpus:
                self._gpus.give_back(gpu)

    def _feed(
        self, waiting: deque[Job], on_start: Callable[[Job], None] | None
    ) -> Generator[CaseResult]:
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
                        # A kernel that did not compile in time will not do so in the next case
                        # either.
                        for left, given_up in self._compiling.end(job, result, waiting):
                            waiting.remove(left)
                            yield given_up
        finally:
            # After an early stop, a busy worker would answer the next run with a result of this
            # one.
            for worker in busy:
                self._retire(worker)

    def _dispatch(
        self, waiting: deque[Job], busy: dict[Worker, Job], on_start: Callable[[Job], None] | None
    ) -> None:
        for worker in [worker for worker in self._workers if worker not in busy]:
            # A kernel can end its worker after its answer, for example by a thread.
            if worker.is_ready and worker.ended():
                self._replace(worker)
        # No more workers than jobs: each loads its own torch.
        if len(self._workers) < self.num_workers:
            for _ in range(
                len(self._workers), min(self.num_workers, self._num_useful(waiting) + len(busy))
            ):
                self._workers.append(self._spawn())
        for worker in list(self._workers):
            if waiting and worker not in busy and worker.is_ready:
                job = self._next_for(worker, waiting, busy.values())
                if job is None:
                    continue
                # Foreign code may have changed the process, and another file's kernel would be
                # judged with that.
                if worker.imported not in ((), job.foreign_code):
                    self._replace(worker)
                    continue
                # The log is that of one case: what is in it is shown with a failure.
                worker.empty_log()
                gpu = self._gpu_of.get(worker) if job.device == "cuda" else None
                # A dead worker takes nothing. The job then stays in `waiting`, and the next round
                # replaces the worker.
                if worker.send(WorkerRequest(job=job, gpu=gpu), job.timeout_seconds):
                    waiting.remove(job)
                    busy[worker] = job
                    worker.imported = job.foreign_code
                    if on_start is not None:
                        on_start(job)

    def _num_useful(self, waiting: deque[Job]) -> int:
        """How many workers the waiting jobs can keep busy: each job on CUDA needs a share of a
        GPU.
        """
        on_gpu = sum(job.device == "cuda" for job in waiting)
        num_gpus = 1 if self.environment is None else max(1, len(self.environment.gpus))
        return len(waiting) - on_gpu + min(on_gpu, self._per_gpu * num_gpus)

    def _next_for(self, worker: Worker, waiting: deque[Job], running: Iterable[Job]) -> Job | None:
        """The first waiting job that `worker` can run.

        For a job on CUDA, the worker locks a GPU and keeps it.
        """
        free: Iterator[Job] = (
            job for job in waiting if not self._compiling.must_wait(job, running)
        )
        if worker.imported:
            # Those come first for which it need not be replaced.
            free = iter(sorted(free, key=lambda job: job.foreign_code != worker.imported))
        first = next(free, None)
        if first is None:
            return None
        if worker in self._gpu_of:
            # Other workers can run the rest, but not on this GPU.
            return next((job for job in chain([first], free) if job.device == "cuda"), first)
        if first.device != "cuda" or self._take_gpu(worker):
            return first
        return next((job for job in free if job.device != "cuda"), None)

    def _take_gpu(self, worker: Worker) -> bool:
        assert self.environment is not None
        if not self.environment.gpus:
            # The worker reports that there is no GPU.
            return True
        self._gpus = self._gpus or GpuLocks(self.environment.gpus, shares=self._per_gpu)
        for gpu in self._gpus.take():
            self._gpu_of[worker] = gpu
            if num_usable_cores() >= CORES_FOR_EARLY_SPARES:
                self._fill_spares(gpu)
        return worker in self._gpu_of

    def _result_of(self, worker: Worker, job: Job) -> CaseResult | None:
        """The result of the worker's job, or None while the job runs."""
        reply = worker.take()
        if reply is not None and reply.result is not None:
            try:
                result = CaseResult.model_validate(reply.result)
            except ValueError as error:
                return self._bury(
                    worker,
                    job,
                    f"the worker's answer is not a result: {str(error).splitlines()[0]}",
                )
            # A kernel that writes to our descriptor can answer in the worker's name, for the case
            # before.
            if result.key != job.key:
                return self._bury(
                    worker, job, f"the worker answered for another job ({result.key!r})"
                )
            printed = worker.printed().strip()
            # Kernels fail on a full disk too. Then the run ends, and no kernel is blamed.
            if result.verdict in BAD:
                worker.check_room()
                result = result.but(log=f"{printed}\n{result.log}".strip())
            if reply.is_spent or (job.ends_worker and self._starts_quickly):
                # Its CUDA context has failed, a thread still computes, or foreign code was
                # imported.
                self._replace(worker)
            return result
        if worker.ended():
            return self._bury(worker, job, None)
        return None

    def _bury(self, worker: Worker, job: Job, how: str | None) -> CaseResult:
        worker.check_room()
        # Before the replacement, which closes the log that the stack is read from.
        death = worker.death()
        self._replace(worker)
        reason = how or death.how
        seconds = round(death.seconds, 3)
        # The driver's log lists errors of many processes, so the message names its case.
        message = f"{job.case.id}: {reason}" if job.device == "cuda" else reason
        at = user_frame(death.log, job.plugins)
        finding = Finding(oracle="crash", message=message, at=at, **death.as_cause)
        return CaseResult.of(
            job, Verdict.CRASH, seconds=seconds, reason=reason, findings=(finding,), log=death.log
        )

    def _select(self) -> None:
        for key, _ in self._selector.select(TICK_SECONDS):
            key.data.read()
        for worker in self._all():
            worker.empty_log(above_bytes=MAX_LOG_BYTES)
            if not worker.is_ready:
                self._check_ready(worker)

    def _check_ready(self, worker: Worker) -> None:
        """Note that a worker is ready.

        Raises WorkerError if it failed to start, unless it is a spare.
        """
        reply = worker.take()
        if reply is not None and reply.ready is not None:
            worker.is_ready = True
            self._num_killed = 0
            self.environment = self.environment or Environment.model_validate(reply.ready)
        elif reply is not None or worker.ended():
            is_spare = worker not in self._workers
            reason = (
                (reply.refused or reply.failed)
                if reply
                else f"{worker.death().how}; {worker.last_line()}"
            )
            code = None if reply else worker.death().code
            self._retire(worker)
            # A spare is a guess. If no worker can start, the next one that is needed says so.
            if is_spare:
                return
            # A signal may come from outside, for example when memory is short. An exit code comes
            # again.
            was_killed = code is not None and code < 0
            self._num_killed += was_killed
            if not was_killed or self._num_killed >= MAX_STARTS:
                raise WorkerError(f"a worker could not start: {reason} (try `mla-harness doctor`)")

    @property
    def _starts_quickly(self) -> bool:
        """Whether a worker is a fork of a process that has imported torch."""
        return self._forks is not None and not self._forks.why_not

    def _spawn(self, *arguments: str) -> Worker:
        environ = self._variables
        for attempt in range(1, MAX_STARTS + 1):
            try:
                worker = Worker(
                    "harness.run.worker",
                    self._execute,
                    *arguments,
                    name="the worker",
                    environ=environ,
                    seconds=self._start_seconds,
                    forks=self._forks.server(environ, self._start_seconds) if self._forks else None,
                )
                break
            except ChildDied:
                # The process that forks was killed while it was asked. The next attempt starts
                # another.
                if attempt == MAX_STARTS:
                    raise
        self._selector.register(worker.fileno(), selectors.EVENT_READ, worker)
        return worker

    def _replace(self, worker: Worker) -> None:
        """End a worker that a case took down. A spare takes its place and its GPU."""
        gpu = self._gpu_of.pop(worker, None)
        self._retire(worker)
        # Before the spare is taken, so that there is one.
        self._fill_spares(gpu)
        self._workers.append(self._spares[gpu].pop(0))
        # As many spares as there should be are left while this one works.
        self._fill_spares(gpu)
        if gpu is not None:
            self._gpu_of[self._workers[-1]] = gpu

    def _fill_spares(self, gpu: int | None) -> None:
        spares = self._spares[gpu]
        while len(spares) < min(MAX_SPARES, max(1, num_usable_cores() // 4)):
            spares.append(self._spawn(*(() if gpu is None else (str(gpu),))))

    def _retire(self, worker: Worker) -> None:
        for group in (self._workers, *self._spares.values()):
            if worker in group:
                group.remove(worker)
                self._selector.unregister(worker.fileno())
        worker.close()
        gpu = self._gpu_of.pop(worker, None)
        if gpu is not None and self._gpus is not None:
            # The spares have a CUDA context on this GPU, which would take memory from the next
            # holder of its lock.
            for spare in list(self._spares[gpu]):
                self._retire(spare)
            self._gpus.give_back(gpu)
