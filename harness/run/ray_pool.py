"""A pool of workers on a Ray cluster: a worker process for each GPU or CPU slot of its nodes.

The cases of a lost node run again on another node, and their results name the lost nodes. Ray is
imported when a pool is opened.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from harness.core.cases import CellOf, Job
from harness.core.catalog import ENGINES
from harness.core.cause_codes import Code
from harness.core.errors import InputError
from harness.core.findings import Finding
from harness.core.records import CaseResult, Verdict
from harness.run import parcel
from harness.run.child import TICK_SECONDS
from harness.run.environment import Environment
from harness.run.pool import JobPool
from harness.run.ray_actor import read_files, write
from harness.run.ray_cluster import ActorLost, Cluster, RaySlot
from harness.run.runner import WorkerError, default_num_workers

MAX_LOSSES = 3
"""A case that lost this many nodes is a crash: it may be what ends them."""
AVOIDED_SECONDS = 10.0
"""How long a node that lost an actor gets no new one.

Ray needs some seconds to notice that a node is gone.
"""
SECOND_TRY_SECONDS = 15.0
"""How long the first worker may start before a second one is tried on another slot."""
PATIENCE_SECONDS = 600.0
"""How long a run waits for a node if none is left."""
TRAVELLING = (
    "MLA_HARNESS_",
    "TRITON_",
    "TORCH_",
    "PYTORCH_",
    *(name for one in ENGINES for name in one.variables),
)
"""Nodes get the driver's environment variables with these prefixes, which can change the outcome of
a case.
"""


@dataclass(slots=True, eq=False)
class RemoteWorker:
    """The driver's view of one actor. `pending` refers to the answer that the actor owes."""

    slot: RaySlot
    handle: Any
    pending: Any
    is_ready: bool = False
    has_fixtures: bool = False
    job: Job | None = None


class RayPool(JobPool):
    """Worker processes on the nodes of a Ray cluster.

    `address` is as in :class:`Cluster`. `num_workers` limits how many cases run at one time. The
    default is all slots of an existing cluster, and on a local one the default of
    :class:`WorkerPool`.
    """

    def __init__(
        self, address: str | None = None, num_workers: int | None = None, **options: Any
    ) -> None:
        """The options are as in :class:`JobPool`."""
        super().__init__(**options)
        self._address = address
        self._limit = num_workers
        self._opened: Cluster | None = None
        self._workers: list[RemoteWorker] = []
        # Key of a job -> the nodes that were lost while they ran it.
        self._losses: dict[str, list[str]] = {}
        # Id of a node -> the time until which it gets no worker; and nodes that never get one, with
        # the reason.
        self._avoided: dict[str, float] = {}
        self._unusable: dict[str, str] = {}
        # References to archives in Ray's object store.
        self._code: Any = None
        self._digest = ""
        self._fixtures: Any = None
        self._stalled_since: float | None = None
        self._last_loss = ""
        self._spawned_at = 0.0

    def __enter__(self) -> Self:
        """Connect to the cluster, before a run sets its signal handlers: Ray sets its own."""
        self._opened = Cluster(self._address, self._limit or default_num_workers())
        code = parcel.pack_code()
        # Put once; each node fetches it from the store, however many workers it has.
        self._code = self._cluster.put(code)
        self._digest = parcel.digest(code)
        return self

    def __exit__(self, *args: Any) -> None:
        super().__exit__(*args)
        if self._opened is not None:
            self._opened.disconnect()

    @property
    def _cluster(self) -> Cluster:
        assert self._opened is not None, "a RayPool is used as a context manager"
        return self._opened

    @property
    def num_workers(self) -> int:  # type: ignore[override]
        """How many cases can run at one time on the present nodes."""
        return min(self._limit or sys.maxsize, max(1, len(self._cluster.slots())))

    def close(self) -> None:
        workers = self._workers
        self._workers = []
        if self._opened is not None:
            self._end(workers)

    def start(self) -> Environment:
        """See :meth:`JobPool.start`. The worker is on a node with a GPU if there is one."""
        self._stalled_since = None
        if self.environment is None:
            self._any_ready()
        assert self.environment is not None
        return self.environment

    def describe_kernels(
        self, plugins: Sequence[str] = (), cell: CellOf | None = None
    ) -> list[dict[str, Any]]:
        self.start()
        files = [parcel.read_plugin(path) for path in plugins]
        for _ in range(MAX_LOSSES):
            worker = self._any_ready()
            worker.pending = worker.handle.describe.remote(files)
            # In short waits, so that Ctrl-C is seen.
            while not self._cluster.wait([worker.pending], TICK_SECONDS):
                pass
            try:
                found = self._cluster.take(worker.pending)
            except ActorLost as error:
                self._forget(worker, error)
                continue
            worker.pending = None
            if "refused" in found:
                raise InputError(found["refused"])
            return list(found["described"])
        raise InputError(
            f"plug-in {', '.join(plugins)}: {MAX_LOSSES} nodes were lost while they loaded it"
        )

    def _run(
        self, waiting: deque[Job], on_start: Callable[[Job], None] | None
    ) -> Generator[CaseResult]:
        self.start()
        self._losses = {}
        self._stalled_since = None
        try:
            while waiting or any(worker.job for worker in self._workers):
                self._dispatch(waiting, on_start)
                self._check_patience()
                for worker in self._answered():
                    if worker.job is None:
                        self._take_ready(worker)
                        continue
                    result = self._result_of(worker, worker.job, waiting)
                    if result is not None:
                        yield result
        finally:
            # After an early stop, a busy worker would answer the next run with a result of this
            # one.
            busy = [worker for worker in self._workers if worker.job is not None]
            self._workers = [worker for worker in self._workers if worker.job is None]
            self._end(busy)

    def _dispatch(self, waiting: deque[Job], on_start: Callable[[Job], None] | None) -> None:
        self._spawn_useful(waiting)
        for worker in self._workers:
            if not waiting:
                return
            is_idle = worker.is_ready and worker.job is None
            if is_idle and (job := self._next_for(worker, waiting)) is not None:
                waiting.remove(job)
                self._send(worker, job)
                if on_start is not None:
                    on_start(job)

    def _send(self, worker: RemoteWorker, job: Job) -> None:
        # Fixtures are megabytes and few cases need them, so a worker gets them with the first that
        # does.
        fixtures = None
        if job.case.kind.asks_canary and not worker.has_fixtures:
            if self._fixtures is None:
                self._fixtures = self._cluster.put(parcel.pack_fixtures())
            fixtures = self._fixtures
            worker.has_fixtures = True
        notes = {}
        if job.directory is not None:
            Path(job.directory).mkdir(parents=True, exist_ok=True)
            notes = read_files(Path(job.directory))
        files = [parcel.read_plugin(path) for path in job.plugins]
        worker.job = job
        worker.pending = worker.handle.run.remote(job.model_dump_json(), files, fixtures, notes)

    def _result_of(self, worker: RemoteWorker, job: Job, waiting: deque[Job]) -> CaseResult | None:
        """The result that `worker` owes, or None if the worker was lost.

        Then the job waits again, as the first one.
        """
        worker.job = None
        lost = self._losses.get(job.key, [])
        try:
            text, notes = self._cluster.take(worker.pending)
        except ActorLost as error:
            self._forget(worker, error)
            self._losses[job.key] = [*lost, worker.slot.name]
            if len(lost) + 1 >= MAX_LOSSES:
                return _ends_nodes(job, tuple(self._losses[job.key]), str(error))
            # First again, so that a job that ends nodes is found out soon, and not at the end of
            # the run.
            waiting.appendleft(job)
            return None
        worker.pending = None
        if job.directory is not None:
            for name, content in notes.items():
                write(Path(job.directory) / name, content)
        return CaseResult.model_validate_json(text).but(lost_nodes=tuple(lost))

    @property
    def _has_gpus(self) -> bool:
        return self.environment is not None and bool(self.environment.gpus)

    def _needs_gpu(self, job: Job) -> bool:
        """Whether the job, or a serving process that its worker starts, needs a GPU."""
        return job.device == "cuda" or job.case.kind.serves

    def _next_for(self, worker: RemoteWorker, waiting: deque[Job]) -> Job | None:
        """The first job that `worker` can run.

        In a cluster with GPUs, jobs that need one wait for a GPU slot.
        """
        if not self._has_gpus:
            # A worker reports that there is no GPU.
            return waiting[0]
        on_gpu = [job for job in waiting if self._needs_gpu(job)]
        # A GPU slot takes jobs for the CPU only when none for a GPU waits.
        if worker.slot.has_gpu and on_gpu:
            return on_gpu[0]
        return next((job for job in waiting if not self._needs_gpu(job)), None)

    def _spawn_useful(self, waiting: deque[Job]) -> None:
        """Start as many workers as the waiting jobs can keep busy, with GPUs for jobs that need
        one.
        """
        if not waiting:
            return
        idle = Counter(worker.slot.has_gpu for worker in self._workers if worker.job is None)
        on_gpu = sum(self._needs_gpu(job) for job in waiting) if self._has_gpus else 0
        useful = {True: on_gpu, False: len(waiting) - on_gpu}
        for slot in self._free_slots():
            if idle[slot.has_gpu] < useful[slot.has_gpu]:
                self._spawn(slot)
                idle[slot.has_gpu] += 1

    def _spawn_first(self) -> None:
        """Start one worker, and from time to time one more of its kind: another job may hold the
        first slot.
        """
        now = time.monotonic()
        if self._workers and now - self._spawned_at < SECOND_TRY_SECONDS:
            return
        kind = {worker.slot.has_gpu for worker in self._workers}
        for slot in self._free_slots():
            if not kind or slot.has_gpu in kind:
                self._spawn(slot)
                return

    def _free_slots(self) -> list[RaySlot]:
        """Slots without a worker of this pool, as many as the limit allows."""
        taken = {worker.slot for worker in self._workers}
        now = time.monotonic()
        free = [
            slot
            for slot in self._cluster.slots()
            if slot not in taken
            and slot.node not in self._unusable
            and self._avoided.get(slot.node, now) <= now
        ]
        return free if self._limit is None else free[: max(0, self._limit - len(self._workers))]

    def _spawn(self, slot: RaySlot) -> None:
        environ = {
            name: value for name, value in os.environ.items() if name.startswith(TRAVELLING)
        } | self._environ
        if not slot.has_gpu:
            # A slot without a GPU must not use one, whatever its node has.
            environ["CUDA_VISIBLE_DEVICES"] = ""
        arguments = (self._digest, self._code, self._execute, environ, self._start_seconds)
        handle = self._cluster.spawn(slot, *arguments)
        self._spawned_at = time.monotonic()
        self._workers.append(RemoteWorker(slot, handle, handle.start.remote()))

    def _answered(self) -> list[RemoteWorker]:
        """Wait a moment for an answer.

        Returns a list of the worker that answered, or an empty list.
        """
        owing = {worker.pending: worker for worker in self._workers if worker.pending is not None}
        if not owing:
            time.sleep(TICK_SECONDS)
            return []
        return [owing[reference] for reference in self._cluster.wait(list(owing), TICK_SECONDS)]

    def _take_ready(self, worker: RemoteWorker) -> None:
        """Note that a worker has started, or refuse one that cannot run cases."""
        try:
            answer = self._cluster.take(worker.pending)
        except ActorLost as error:
            self._forget(worker, error)
            return
        worker.pending = None
        if "failed" in answer:
            self._refuse(worker, answer["failed"])
            return
        found = Environment.model_validate(answer["ready"])
        first = self.environment or found
        # Results of two versions are not results of one run, and code packed by one may not load in
        # another.
        if (found.python, found.torch) != (first.python, first.torch):
            versions = f"Python {found.python} and torch {found.torch}"
            self._refuse(worker, f"it has {versions}, other nodes {first.python} and {first.torch}")
            return
        worker.is_ready = True
        self.environment = self.environment or found.but(cluster=self._cluster.describe())

    def _refuse(self, worker: RemoteWorker, why: str) -> None:
        """Never use this worker's node again. Raises WorkerError if no other node is left."""
        if worker in self._workers:
            self._workers.remove(worker)
        self._end([worker])
        if worker.slot.node in self._unusable:
            return
        self._unusable[worker.slot.node] = f"node {worker.slot.name} cannot run cases: {why}"
        if all(slot.node in self._unusable for slot in self._cluster.slots()):
            raise WorkerError(self._unusable[worker.slot.node])
        print(f"mla-harness: warning: {self._unusable[worker.slot.node]}", file=sys.stderr)

    def _end(self, workers: list[RemoteWorker]) -> None:
        self._cluster.end(
            [w.handle for w in workers if w.is_ready], [w.handle for w in workers if not w.is_ready]
        )

    def _forget(self, worker: RemoteWorker, error: ActorLost) -> None:
        """Drop a lost worker, and avoid its node for a while."""
        if worker in self._workers:
            self._workers.remove(worker)
        self._last_loss = str(error)
        # A node that is about to go may still offer slots.
        self._avoided[worker.slot.node] = time.monotonic() + AVOIDED_SECONDS

    def _any_ready(self) -> RemoteWorker:
        """Wait for an idle worker, with a GPU if there is one."""
        while True:
            ready = [worker for worker in self._workers if worker.is_ready and worker.job is None]
            if ready:
                return max(ready, key=lambda worker: worker.slot.has_gpu)
            self._spawn_first()
            self._check_patience()
            for worker in self._answered():
                self._take_ready(worker)

    def _check_patience(self) -> None:
        """Raise WorkerError if nothing ran for too long: nodes are gone, or other programs hold all
        slots.
        """
        now = time.monotonic()
        if any(worker.job is not None for worker in self._workers):
            self._stalled_since = now
        self._stalled_since = self._stalled_since or now
        is_starting = any(not worker.is_ready for worker in self._workers)
        # A node may unpack the code and import torch for minutes. That is no stall.
        allowed = PATIENCE_SECONDS + (self._start_seconds if is_starting else 0.0)
        if now - self._stalled_since > allowed:
            last = f"; the last was lost: {self._last_loss[:300]}" if self._last_loss else ""
            raise WorkerError(
                f"the Ray cluster {self._cluster.address} has had no free slot that can run the"
                f" next case for {allowed:g} s (see `ray status`){last}"
            )


def _ends_nodes(job: Job, nodes: tuple[str, ...], how: str) -> CaseResult:
    reason = f"{len(nodes)} nodes were lost while they ran it"
    findings = (Finding(oracle="crash", message=reason, cause=Code.LOST_NODES),)
    return CaseResult.of(
        job, Verdict.CRASH, reason=reason, findings=findings, log=how, lost_nodes=nodes
    )
