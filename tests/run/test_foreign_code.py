"""Which cases share a worker with foreign code, and a worker that something else ends before it is
ready.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.core.cases import Job
from harness.core.records import Verdict
from harness.run import runner, threads
from harness.run.fork_server import ForkServer
from harness.run.gpus import GpuLocks
from harness.run.runner import Worker, WorkerError, WorkerPool
from tests.transcripts import Approved
from tests.waiting import wait_until

from .test_runner import job, stub_pool  # type: ignore[import-not-found]
from .test_several_gpus import GPUS, with_gpus  # type: ignore[import-not-found]
from .test_several_gpus import job as job_of


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with stub_pool() as made:
        yield made


def foreign(name: str, *files: str, ends: bool = False, **more: Any) -> Job:
    made: Job = job(name, "pid", **more)
    return made.but(plugins=files, ends_worker=ends)


def pids(pool: WorkerPool, *jobs: Job) -> list[str]:
    return [result.reason for result in pool.run_in_order(jobs)]


def test_a_worker_ends_after_a_case_that_it_is_for(pool: WorkerPool) -> None:
    alone = [foreign(f"n{n}", "/a.py", ends=True) for n in range(3)]
    found = pids(pool, job("before", "pid"), *alone, job("after", "pid"))
    # What ran before it is of the harness itself, and harmless.
    assert found[0] == found[1] and len(set(found)) == 4


def test_cases_of_one_plugin_share_a_worker_and_no_other_case_gets_it(pool: WorkerPool) -> None:
    a, b = ([foreign(f"{file}{n}", f"/{file}.py") for n in range(2)] for file in "ab")
    found = pids(pool, job("before", "pid"), *a, *b, job("after", "pid"))
    assert [found[0], found[0], found[0]] == found[:3]
    assert found[3] == found[4] and len({found[0], found[3], found[5]}) == 3


def test_a_worker_takes_the_cases_of_its_plugin_first(pool: WorkerPool) -> None:
    mixed = [foreign(f"{file}{n}", f"/{file}.py") for n in range(3) for file in "ab"]
    assert len(set(pids(pool, *mixed))) == 2


def test_a_worker_on_a_gpu_is_shared_by_the_cases_of_one_plugin(
    pool: WorkerPool, tmp_path: Path
) -> None:
    with_gpus(pool, 1, tmp_path)
    jobs = [
        job_of(name, device="cuda", does="pid").but(plugins=(f"/{name[0]}.py",))
        for name in ("a1", "a2", "b1")
    ]
    first, second, third = pids(pool, *jobs)
    assert first == second != third
    # The worker that came last holds the GPU of the first.
    assert GpuLocks(GPUS[:1], tmp_path).take() == ()


def test_without_a_process_that_forks_the_cases_of_a_plugin_share_a_worker(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkerPool, "_starts_quickly", False)
    assert len(set(pids(pool, *(foreign(f"n{n}", "/a.py", ends=True) for n in range(2))))) == 1


def kill_new_workers(monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """Have the first `times` workers killed before they are ready.

    Returns their ids, as they come.
    """
    killed: list[int] = []
    take = Worker.take

    def taken(self: Worker) -> Any:
        if not self.is_ready and len(killed) < times and self.pid not in killed:
            killed.append(self.pid)
            os.kill(self.pid, signal.SIGKILL)
            self._process.wait()
            self._replies.clear()
            self._is_closed_stream = True
        return None if self.pid in killed else take(self)

    monkeypatch.setattr(Worker, "take", taken)
    return killed


def test_a_worker_that_is_killed_before_it_is_ready_is_started_again(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = kill_new_workers(monkeypatch, runner.MAX_STARTS - 1)
    assert pool.run_in_order([job("works")])[0].verdict is Verdict.PASS
    assert len(killed) == runner.MAX_STARTS - 1


def test_workers_that_are_killed_again_and_again_end_the_run_with_what_killed_them(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    killed = kill_new_workers(monkeypatch, 100)
    with approved.raises(WorkerError):
        pool.run_in_order([job("never")])
    assert len(killed) == runner.MAX_STARTS


def test_a_process_that_forks_and_is_killed_is_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, killed = ForkServer.start, []

    def kill_first(self: ForkServer, *arguments: Any, **more: Any) -> Any:
        if not killed:
            killed.append(self)
            os.kill(self.pid, signal.SIGKILL)
        return start(self, *arguments, **more)

    monkeypatch.setattr(ForkServer, "start", kill_first)
    # A server of its own: the one of other tests stays as it is.
    with WorkerPool(
        1,
        execute="stub_execute:execute",
        environ={"PYTHONPATH": str(Path(__file__).parent), "A": "b"},
    ) as pool:
        assert pool.run_in_order([job("works")])[0].verdict is Verdict.PASS
    assert len(killed) == 1


def test_a_thread_that_computes_is_seen_and_one_that_waits_is_not() -> None:
    end = threading.Event()
    waiting = threading.Thread(target=end.wait, daemon=True)
    waiting.start()
    assert not threads.any_computes()

    def spin() -> None:
        while not end.is_set():
            pass

    spinning = threading.Thread(target=spin, daemon=True)
    spinning.start()
    try:
        # On a busy machine it may not run at once.
        assert wait_until(threads.any_computes, "the thread that spins was seen")
    finally:
        end.set()
        spinning.join()


def test_a_thread_that_was_seen_to_wait_is_not_waited_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end = threading.Event()
    waiting = threading.Thread(target=end.wait, daemon=True)
    waiting.start()
    try:
        assert not threads.any_computes()
        monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it waited"))
        assert not threads.any_computes()
    finally:
        end.set()
        waiting.join()


def test_without_other_threads_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread()])
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it waited"))
    assert not threads.any_computes()
