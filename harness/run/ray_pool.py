"""The plan's jobs on a Ray cluster: a case process for each GPU or CPU slot of its nodes, and the same results.

A node that is lost costs the cases that it was running. They are planned again elsewhere, and their results name the
lost nodes. Imports no torch, and Ray only when a pool is opened.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from harness.core.cases import Job
from harness.core.catalog import ENGINES
from harness.core.errors import InputError
from harness.core.records import CaseResult, Finding, Verdict
from harness.run import parcel
from harness.run.child import TICK_SECONDS
from harness.run.environment import Environment
from harness.run.pool import Pool
from harness.run.ray_actor import read_files
from harness.run.ray_cluster import ActorLost, Cluster, Slot
from harness.run.runner import WorkerError, default_num_workers
from harness.run.worker import DEFAULT_EXECUTE

MAX_LOSSES = 3
"""A case that was running on so many nodes when they were lost is a crash: it may be what ends them."""
AVOIDED_SECONDS = 10.0
"""How long a node that lost an actor is left alone; Ray takes some seconds to know that a node is gone."""
SECOND_TRY_SECONDS = 15.0
"""How long the first worker may take to start before a second is tried elsewhere."""
PATIENCE_SECONDS = 60.0
"""How long a run waits for a node when none is left."""
TRAVELLING = ("MLA_HARNESS_", "TRITON_", "TORCH_", "PYTORCH_", *(name for one in ENGINES for name in one.variables))
"""Environment variables with these prefixes decide what a case does, so nodes get those of the driver."""


@dataclass(slots=True, eq=False)
class RemoteWorker:
    """One actor as the driver sees it. `pending` is the answer that it owes."""

    slot: Slot
    handle: Any
    pending: Any
    is_ready: bool = False
    has_fixtures: bool = False
    job: Job | None = None


class RayPool(Pool):
    """Case processes on the nodes of a Ray cluster.

    `address` is as in :class:`Cluster`. `num_workers` limits how many cases run at one time; by default all slots of an
    existing cluster are used, and of a local one as many as :class:`WorkerPool` would use.
    """

    def __init__(
        self,
        address: str | None = None,
        num_workers: int | None = None,
        *,
        execute: str = DEFAULT_EXECUTE,
        environ: dict[str, str] | None = None,
        start_timeout_seconds: float = 180.0,
    ) -> None:
        self.environment: Environment | None = None
        self._address = address
        self._limit = num_workers
        self._execute = execute
        self._environ = environ or {}
        self._start_timeout_seconds = start_timeout_seconds
        self._opened: Cluster | None = None
        self._workers: list[RemoteWorker] = []
        self._losses: dict[str, list[str]] = {}
        self._avoided: dict[str, float] = {}
        self._unusable: dict[str, str] = {}
        self._code: Any = None
        self._digest = ""
        self._fixtures: Any = None
        self._stalled_since: float | None = None
        self._last_loss = ""
        self._spawned_at = 0.0

    def __enter__(self) -> Self:
        """Connect. Before anything else, as Ray takes the handlers of signals that a run then sets for itself."""
        self._opened = Cluster(self._address, self._limit or default_num_workers())
        code = parcel.pack_code()
        self._code, self._digest = self._cluster.put(code), parcel.digest(code)
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
        """Cases that can run at one time, with the nodes that there are now."""
        return min(self._limit or sys.maxsize, max(1, len(self._cluster.slots())))

    def close(self) -> None:
        """End every worker and whatever it started."""
        workers, self._workers = self._workers, []
        if self._opened is not None:
            self._end(workers)

    def start(self) -> Environment:
        """Wait until one worker is ready, on a node with a GPU where there is one. Raises WorkerError."""
        self._stalled_since = None
        while self.environment is None:
            self._spawn_first()
            self._check_patience()
            for worker in self._answered():
                self._take_ready(worker)
        return self.environment

    def describe_kernels(self, plugins: Sequence[str] = ()) -> list[dict[str, Any]]:
        """As a node sees them; see :meth:`Pool.describe_kernels`."""
        self.start()
        files = [parcel.read_plugin(path) for path in plugins]
        for _ in range(MAX_LOSSES):
            worker = self._any_ready()
            worker.pending = worker.handle.describe.remote(files)
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
            described: list[dict[str, Any]] = found["described"]
            return described
        raise InputError(f"plug-in {', '.join(plugins)}: {MAX_LOSSES} nodes were lost while they loaded it")

    def run(self, jobs: Sequence[Job], on_start: Callable[[Job], None] | None = None) -> Iterator[CaseResult]:
        """Yield one result for each job, as they end; see :meth:`Pool.run`."""
        self.start()
        waiting = deque(jobs)
        self._losses, self._stalled_since = {}, None
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
            # Whoever stops early leaves no worker that would answer the next run with this one's results.
            busy = [worker for worker in self._workers if worker.job is not None]
            self._workers = [worker for worker in self._workers if worker.job is None]
            self._end(busy)

    def _dispatch(self, waiting: deque[Job], on_start: Callable[[Job], None] | None) -> None:
        self._spawn_useful(waiting)
        for worker in self._workers:
            if not waiting:
                return
            if not worker.is_ready or worker.job is not None:
                continue
            job = self._next_for(worker, waiting)
            if job is None:
                continue
            waiting.remove(job)
            self._send(worker, job)
            if on_start is not None:
                on_start(job)

    def _send(self, worker: RemoteWorker, job: Job) -> None:
        fixtures = None
        if job.case.kind.asks_canary and not worker.has_fixtures:
            if self._fixtures is None:
                self._fixtures = self._cluster.put(parcel.pack_fixtures())
            fixtures, worker.has_fixtures = self._fixtures, True
        notes = {}
        if job.directory is not None:
            Path(job.directory).mkdir(parents=True, exist_ok=True)
            notes = read_files(Path(job.directory))
        files = [parcel.read_plugin(path) for path in job.plugins]
        worker.job = job
        worker.pending = worker.handle.run.remote(job.model_dump_json(), files, fixtures, notes)

    def _result_of(self, worker: RemoteWorker, job: Job, waiting: deque[Job]) -> CaseResult | None:
        """The result that `worker` owes; None when it was lost and the job waits again, before all others."""
        worker.job = None
        lost = self._losses.get(job.key, [])
        try:
            text, notes = self._cluster.take(worker.pending)
        except ActorLost as error:
            self._forget(worker, error)
            self._losses[job.key] = [*lost, worker.slot.name]
            if len(lost) + 1 >= MAX_LOSSES:
                return _ends_nodes(job, tuple(self._losses[job.key]), str(error))
            waiting.appendleft(job)
            return None
        worker.pending = None
        if job.directory is not None:
            for name, content in notes.items():
                path = Path(job.directory) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        return CaseResult.model_validate_json(text).model_copy(update={"lost_nodes": tuple(lost)})

    @property
    def _has_gpus(self) -> bool:
        return self.environment is not None and bool(self.environment.gpus)

    def _needs_gpu(self, job: Job) -> bool:
        """Whether a job takes a GPU, itself or in a serving process that its worker starts."""
        return job.device == "cuda" or job.case.kind.serves

    def _next_for(self, worker: RemoteWorker, waiting: deque[Job]) -> Job | None:
        """The first job for `worker`: those on a GPU wait for a worker that has one, if the cluster began with one."""
        if not self._has_gpus:
            # Whoever runs a job that needs a GPU says that there is none.
            return waiting[0]
        on_gpu = [job for job in waiting if self._needs_gpu(job)]
        if worker.slot.has_gpu and on_gpu:
            return on_gpu[0]
        return next((job for job in waiting if not self._needs_gpu(job)), None)

    def _spawn_useful(self, waiting: deque[Job]) -> None:
        """As many workers as the waiting jobs can keep busy, GPUs for those that need one."""
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
        """One worker, and one more of its kind from time to time: somebody else may hold the slot of the first."""
        now = time.monotonic()
        if self._workers and now - self._spawned_at < SECOND_TRY_SECONDS:
            return
        kind = {worker.slot.has_gpu for worker in self._workers}
        for slot in self._free_slots():
            if not kind or slot.has_gpu in kind:
                self._spawn(slot)
                return

    def _free_slots(self) -> list[Slot]:
        """Slots that have no worker of ours, as many as the limit leaves."""
        taken = {worker.slot for worker in self._workers}
        now = time.monotonic()
        free = [
            slot
            for slot in self._cluster.slots()
            if slot not in taken and slot.node not in self._unusable and self._avoided.get(slot.node, now) <= now
        ]
        return free if self._limit is None else free[: max(0, self._limit - len(self._workers))]

    def _spawn(self, slot: Slot) -> None:
        travelling = {name: value for name, value in os.environ.items() if name.startswith(TRAVELLING)}
        environ = travelling | self._environ
        if not slot.has_gpu:
            environ["CUDA_VISIBLE_DEVICES"] = ""
        handle = self._cluster.spawn(
            slot, self._digest, self._code, self._execute, environ, self._start_timeout_seconds
        )
        self._spawned_at = time.monotonic()
        self._workers.append(RemoteWorker(slot, handle, handle.start.remote()))

    def _answered(self) -> list[RemoteWorker]:
        """A worker whose answer is there, in a list; waits a moment for one."""
        owing = {worker.pending: worker for worker in self._workers if worker.pending is not None}
        if not owing:
            time.sleep(TICK_SECONDS)
            return []
        return [owing[reference] for reference in self._cluster.wait(list(owing), TICK_SECONDS)]

    def _take_ready(self, worker: RemoteWorker) -> None:
        """Take in what a worker says once it has started, or that it cannot."""
        try:
            told = self._cluster.take(worker.pending)
        except ActorLost as error:
            self._forget(worker, error)
            return
        worker.pending = None
        if "failed" in told:
            self._refuse(worker, told["failed"])
            return
        found = Environment.model_validate(told["ready"])
        first = self.environment or found
        if (found.python, found.torch) != (first.python, first.torch):
            versions = f"Python {found.python} and torch {found.torch}"
            self._refuse(worker, f"it has {versions}, other nodes {first.python} and {first.torch}")
            return
        worker.is_ready = True
        self.environment = self.environment or found.model_copy(update={"cluster": self._cluster.describe()})

    def _refuse(self, worker: RemoteWorker, why: str) -> None:
        """Leave a node alone for good. Raises WorkerError when no other is left."""
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
        """End workers; one that never started has nothing to close."""
        self._cluster.end([w.handle for w in workers if w.is_ready], [w.handle for w in workers if not w.is_ready])

    def _forget(self, worker: RemoteWorker, error: ActorLost) -> None:
        """Give up a worker that was lost, and leave its node alone for a while."""
        if worker in self._workers:
            self._workers.remove(worker)
        self._last_loss = str(error)
        self._avoided[worker.slot.node] = time.monotonic() + AVOIDED_SECONDS

    def _any_ready(self) -> RemoteWorker:
        """A worker that has nothing to do, on a GPU where there is one."""
        while True:
            ready = [worker for worker in self._workers if worker.is_ready and worker.job is None]
            if ready:
                return max(ready, key=lambda worker: worker.slot.has_gpu)
            self._spawn_first()
            self._check_patience()
            for worker in self._answered():
                self._take_ready(worker)

    def _check_patience(self) -> None:
        """Raise WorkerError when nothing ran for too long: nodes are gone, or others hold all slots."""
        now = time.monotonic()
        if any(worker.job is not None for worker in self._workers):
            self._stalled_since = now
        self._stalled_since = self._stalled_since or now
        is_starting = any(not worker.is_ready for worker in self._workers)
        allowed = PATIENCE_SECONDS + (self._start_timeout_seconds if is_starting else 0.0)
        if now - self._stalled_since > allowed:
            last = f"; the last was lost: {self._last_loss[:300]}" if self._last_loss else ""
            raise WorkerError(
                f"the Ray cluster {self._cluster.address} has had no free slot that can run the next case for "
                f"{allowed:g} s (see `ray status`){last}"
            )


def _ends_nodes(job: Job, nodes: tuple[str, ...], how: str) -> CaseResult:
    reason = f"{len(nodes)} nodes were lost while they ran it"
    return CaseResult.of(
        job, Verdict.CRASH, reason=reason, findings=(Finding(oracle="crash", message=reason),), log=how,
        lost_nodes=nodes,
    )  # fmt: skip
