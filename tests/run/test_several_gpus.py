"""A case that spans several GPUs holds them all, alone, and one that cannot have them says so
itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.core.cases import Case, Job
from harness.core.records import Verdict
from harness.run.environment import Gpu
from harness.run.gpus import GpuLocks
from harness.run.runner import WorkerPool

STUB = {"PYTHONPATH": str(Path(__file__).parent)}
GPUS = tuple(
    Gpu(name="stub", capability="9.0", memory_bytes=1, uuid=f"uuid-{index}") for index in range(3)
)


def job(
    name: str, *, num_gpus: int = 1, device: str = "cpu", does: str = "gpus", seconds: float = 0.0
) -> Job:
    tags = (f"does={does}", f"seconds={seconds}")
    case = Case(
        id=name, scenario="stub", system="vllm", tags=tags, params={"tensor_parallel": num_gpus}
    )
    return Job(key=name, case=case, device=device)


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2, execute="stub_execute:execute", environ=STUB) as made:
        yield made


def with_gpus(pool: WorkerPool, count: int, locks: Path, shares: int = 1) -> None:
    """Have the pool see GPUs that this machine has not got. `shares` workers share each."""
    pool.environment = pool.start().model_copy(update={"gpus": GPUS[:count]})
    pool._gpus = GpuLocks(GPUS[:count], locks, shares)


def test_it_runs_after_the_others_with_gpus_that_nobody_else_can_take(
    pool: WorkerPool, tmp_path: Path
) -> None:
    with_gpus(pool, 2, tmp_path)
    started: list[str] = []
    free: list[tuple[int, ...]] = []

    def on_start(begun: Job) -> None:
        started.append(begun.key)
        if begun.key == "wide":
            free.append(GpuLocks(GPUS, tmp_path).take())

    narrow = [job(name, device="cuda", seconds=0.2) for name in ("a", "b", "c")]
    results = {
        result.key: result for result in pool.run([job("wide", num_gpus=2), *narrow], on_start)
    }
    assert started[-1] == "wide" and sorted(started) == ["a", "b", "c", "wide"]
    assert results["wide"].reason == "(0, 1)" and results["a"].reason == "()"
    # Only the third GPU is free while the case holds two.
    assert free == [(2,)]
    assert GpuLocks(GPUS, tmp_path).take(2) == (0, 1)


def test_two_such_cases_run_one_after_the_other(pool: WorkerPool, tmp_path: Path) -> None:
    with_gpus(pool, 3, tmp_path)
    at_once = [job(name, num_gpus=2, seconds=0.2) for name in ("first", "second")]
    assert [result.reason for result in pool.run(at_once)] == ["(0, 1)", "(0, 1)"]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_where_there_are_too_few_it_runs_with_none_held_and_is_skipped_there(
    count: int, pool: WorkerPool, tmp_path: Path
) -> None:
    with_gpus(pool, count, tmp_path)
    (result,) = pool.run([job("wide", num_gpus=4)])
    assert (result.verdict, result.reason) == (Verdict.PASS, "()")


def test_gpus_are_given_back_when_the_case_dies(pool: WorkerPool, tmp_path: Path) -> None:
    with_gpus(pool, 2, tmp_path)
    (result,) = pool.run([job("wide", num_gpus=2, does="exit")])
    assert result.verdict is Verdict.CRASH
    assert GpuLocks(GPUS, tmp_path).take(2) == (0, 1)


@pytest.mark.nightly
def test_workers_share_a_gpu_when_asked_and_no_other_session_gets_it(tmp_path: Path) -> None:
    with WorkerPool(3, per_gpu=2, execute="stub_execute:execute", environ=STUB) as pool:
        with_gpus(pool, 1, tmp_path, shares=2)
        running: set[str] = set()
        at_once: list[int] = []
        # All workers are ready before the first job for a GPU.
        while sum(worker.is_ready for worker in pool.workers) < 3:
            list(pool.run([job(name, seconds=0.2) for name in ("x", "y", "z")]))

        def on_start(begun: Job) -> None:
            running.add(begun.key)
            at_once.append(len(running))
            assert GpuLocks(GPUS[:1], tmp_path).take() == ()

        jobs = [job(name, device="cuda", seconds=0.2) for name in ("a", "b", "c", "d")]
        for result in pool.run(jobs, on_start):
            assert result.verdict is Verdict.PASS
            running.remove(result.key)
        assert max(at_once) == 2
    assert GpuLocks(GPUS[:1], tmp_path).take() == (0,)


def test_shares_are_spread_over_the_gpus(tmp_path: Path) -> None:
    locks = GpuLocks(GPUS[:2], tmp_path, shares=2)
    assert [locks.take() for _ in range(5)] == [(0,), (1,), (0,), (1,), ()]
    locks.give_back(1)
    assert GpuLocks(GPUS[:2], tmp_path).take() == ()
    assert locks.take() == (1,)
