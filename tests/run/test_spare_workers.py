"""After the first loss of a worker, a process that is already running takes the place of each lost
worker.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.core.records import Verdict
from harness.run import runner
from harness.run.gpus import GpuLocks
from harness.run.runner import WorkerPool
from tests.waiting import wait_until

from .test_runner import job, stub_pool  # type: ignore[import-not-found]
from .test_several_gpus import GPUS, with_gpus  # type: ignore[import-not-found]
from .test_several_gpus import job as job_of  # type: ignore[import-not-found]


@pytest.fixture(autouse=True)
def _one_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MAX_SPARES", 1)


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with stub_pool() as made:
        yield made


def spares(pool: WorkerPool) -> list[int]:
    return [spare.pid for group in pool.spares.values() for spare in group]


def pid(pool: WorkerPool) -> int:
    return int(pool.run_in_order([job("pid", "pid")])[0].reason)


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_green_run_starts_no_spare(pool: WorkerPool) -> None:
    assert all(result.verdict is Verdict.PASS for result in pool.run([job("a"), job("b")]))
    assert spares(pool) == [] and len(pool.workers) == 1


def test_the_process_of_the_next_case_was_alive_before_the_crash(pool: WorkerPool) -> None:
    first = pid(pool)
    pool.run_in_order([job("exit", "exit")])
    (spare,), second = spares(pool), pid(pool)
    assert len({first, second, spare}) == 3 and is_running(spare)
    pool.run_in_order([job("segfault", "segfault")])
    assert pid(pool) == spare and not is_running(second)
    assert len(spares(pool)) == 1 and spares(pool) != [spare]


def test_close_ends_the_spares(pool: WorkerPool) -> None:
    pool.run_in_order([job("exit", "exit")])
    running = [*spares(pool), *(worker.pid for worker in pool.workers)]
    assert len(running) == 2 and all(map(is_running, running))
    pool.close()
    assert not any(map(is_running, running)) and spares(pool) == []
    # A closed pool can be used again, as the pool of a node of a cluster is.
    assert pool.run_in_order([job("after")])[0].verdict is Verdict.PASS


@pytest.mark.nightly
def test_a_spare_that_dies_is_replaced_and_ends_no_run(pool: WorkerPool) -> None:
    pool.run_in_order([job("exit", "exit")])
    (spare,) = spares(pool)
    os.kill(spare, 9)
    results = pool.run_in_order(
        [job("slow", seconds=1.0), job("exit", "exit"), job("after", "pid")]
    )
    assert [result.verdict.value for result in results] == ["pass", "crash", "pass"]
    assert results[-1].reason != str(spare)


def test_a_failure_that_spends_its_context_is_kept_with_its_log_and_a_spare_goes_on(
    pool: WorkerPool, tmp_path: Path
) -> None:
    with_gpus(pool, 1, tmp_path)
    jobs = [
        job_of("spends", device="cuda", does="spend"),
        job_of("after", device="cuda", does="pid"),
    ]
    spent, after = pool.run_in_order(jobs)
    assert spent.verdict is Verdict.FAIL and "the stub prints" in spent.log
    assert after.verdict is Verdict.PASS
    assert GpuLocks(GPUS[:1], tmp_path).take() == ()


@pytest.mark.nightly
def test_a_spare_takes_the_gpu_of_the_lost_worker_and_keeps_its_lock(
    pool: WorkerPool, tmp_path: Path
) -> None:
    with_gpus(pool, 1, tmp_path)
    theirs = GpuLocks(GPUS[:1], tmp_path)
    taken = []
    for result in pool.run(
        [job_of("dies", device="cuda", does="exit"), job_of("pid", device="cuda", does="pid")]
    ):
        taken.append(theirs.take())
        if result.key == "dies":
            assert result.verdict is Verdict.CRASH
    assert taken == [(), ()] and theirs.take() == ()
    assert len(pool.spares[0]) == 1 and not pool.spares.get(None)
    pool.close()
    assert theirs.take() == (0,)


@pytest.mark.nightly
def test_on_a_large_machine_a_gpu_has_its_spare_before_the_first_crash(
    pool: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "CORES_FOR_EARLY_SPARES", 1)
    with_gpus(pool, 1, tmp_path)
    pool.run_in_order([job_of("passes", device="cuda", does="pid")])
    (spare,) = spares(pool)
    results = pool.run_in_order(
        [job_of("dies", device="cuda", does="exit"), job_of("pid", device="cuda", does="pid")]
    )
    assert results[0].verdict is Verdict.CRASH and results[1].reason == str(spare)


@pytest.mark.nightly
def test_a_case_over_several_gpus_ends_the_spares_that_sit_on_them(
    pool: WorkerPool, tmp_path: Path
) -> None:
    with_gpus(pool, 2, tmp_path)
    jobs = [job_of("dies", device="cuda", does="exit"), job_of("wide", num_gpus=2)]
    results = {result.key: result for result in pool.run(jobs)}
    assert results["wide"].reason == "(0, 1)"
    assert pool.spares[0] == () and GpuLocks(GPUS[:2], tmp_path).take(2) == (0, 1)


@pytest.mark.nightly
def test_several_workers_share_the_spares() -> None:
    with stub_pool(2) as pool:
        jobs = [job(f"n{n}", "exit" if n in (1, 4) else "pid", seconds=0.1) for n in range(6)]
        results = pool.run_in_order(jobs)
        assert [result.verdict is Verdict.CRASH for result in results] == [
            n in (1, 4) for n in range(6)
        ]
        running = [*spares(pool), *(worker.pid for worker in pool.workers)]
        assert len(running) == 3
    wait_until(lambda: not any(map(is_running, running)), "the workers ended")
