"""Deaths, hangs, garbage and noise of workers end in results; the run goes on."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.core.cases import Case, Job
from harness.core.errors import NoRoomError
from harness.core.records import Verdict
from harness.run import child
from harness.run.runner import WorkerError, WorkerPool
from tests.transcripts import Approved
from tests.waiting import HANG_SECONDS, end_limits_when, wait_until_group_is_gone

STUB = {"PYTHONPATH": str(Path(__file__).parent)}


def job(name: str, does: str = "pass", *, timeout: float = HANG_SECONDS, **options: Any) -> Job:
    tags = tuple(f"{name}={value}" for name, value in {"does": does, **options}.items())
    case = Case(id=name, scenario="stub", system="kernel", op="write_kv", tags=tags)
    return Job(key=name, case=case, timeout_seconds=timeout)


def stub_pool(num_workers: int = 1) -> WorkerPool:
    return WorkerPool(
        num_workers, execute="stub_execute:execute", environ=STUB, start_seconds=math.inf
    )


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with stub_pool() as shared:
        yield shared


def one(pool: WorkerPool, stub: Job) -> Any:
    """The result of one job, and proof that the pool still works after it."""
    result, after = pool.run_in_order([stub, job("after")])
    assert after.verdict is Verdict.PASS
    return result


@pytest.mark.parametrize(
    ("does", "how"),
    [
        ("exit", "exited with code 7"),
        ("segfault", "died of SIGSEGV"),
        ("garble", "garbled"),
        ("wrong_key", "another job"),
    ],
)
def test_a_worker_that_dies_is_that_cases_crash_and_the_run_goes_on(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch, does: str, how: str
) -> None:
    if does == "wrong_key":
        # It never ends by itself, so nothing is won by waiting.
        monkeypatch.setattr(child, "END_SECONDS", 0.0)
    result = one(pool, job(does, does))
    assert result.verdict is Verdict.CRASH
    assert [finding.oracle for finding in result.findings] == ["crash"]
    assert how in result.reason and how in result.findings[0].message


def test_a_worker_that_dies_while_its_log_cannot_grow_is_no_crash_of_its_case(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    # What it printed may have ended it.
    full = os.statvfs_result((4096, 4096, 10, 0, 0, 10, 10, 10, 0, 255))
    monkeypatch.setattr(os, "fstatvfs", lambda descriptor: full)
    with approved.raises(NoRoomError):
        one(pool, job("died", "exit"))
    assert one(pool, job("passes")).verdict is Verdict.PASS


def test_a_file_of_a_case_that_does_not_fit_ends_the_run_and_is_no_result(
    pool: WorkerPool, approved: Approved
) -> None:
    with approved.raises(NoRoomError):
        one(pool, job("full", "full"))
    assert one(pool, job("passes")).verdict is Verdict.PASS


def test_the_log_of_a_segfault_holds_the_python_stack(pool: WorkerPool) -> None:
    result = one(pool, job("segfault", "segfault"))
    assert "Segmentation fault" in result.log and "stub_execute.py" in result.log


def test_a_hang_is_killed_after_its_timeout_and_the_log_shows_where_it_hung(
    pool: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    started = tmp_path / "started"
    end_limits_when(monkeypatch, child, started.exists)
    result = one(pool, job("hang", "hang", timeout=1.0, started=started))
    assert result.verdict is Verdict.CRASH
    approved(result.reason)
    assert 'stub_execute.py", line' in result.log


def test_what_a_hanging_kernel_forked_is_ended_with_it(
    pool: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pid"
    end_limits_when(monkeypatch, child, file.exists)
    one(pool, job("fork", "fork_and_hang", timeout=1.0, pid_file=file))
    wait_until_group_is_gone(int(file.read_text()))


def test_an_exception_outside_any_kernel_is_an_error_with_its_traceback(
    pool: WorkerPool, approved: Approved
) -> None:
    result = one(pool, job("raise", "raise"))
    assert result.verdict is Verdict.ERROR
    approved(result.reason)
    assert "Traceback" in result.log


def test_sys_exit_in_a_kernel_is_a_crash_and_not_the_end_of_the_worker(pool: WorkerPool) -> None:
    result = one(pool, job("quit", "sys_exit"))
    assert result.verdict is Verdict.CRASH
    assert "SystemExit" in result.reason


def test_printing_does_not_disturb_the_protocol(pool: WorkerPool) -> None:
    assert one(pool, job("noise", "print")).verdict is Verdict.PASS


def test_text_that_utf8_cannot_hold_arrives_as_a_question_mark(pool: WorkerPool) -> None:
    assert one(pool, job("text", "surrogate")).findings[0].message == "lone ? surrogate"


@pytest.mark.parametrize("num_workers", [1, 3])
def test_the_order_of_results_does_not_depend_on_the_number_of_workers(num_workers: int) -> None:
    jobs = [
        job(f"case {n}", "exit" if n == 2 else "pass", seconds=0.2 * (n == 0)) for n in range(6)
    ]
    with stub_pool(num_workers) as pool:
        results = pool.run_in_order(jobs)
    assert [result.key for result in results] == [stub.key for stub in jobs]
    assert [result.verdict is Verdict.CRASH for result in results] == [n == 2 for n in range(6)]


def test_a_worker_begins_its_next_job_only_after_its_result_was_taken(
    pool: WorkerPool, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    results = pool.run([job(name, started=str(started)) for name in ("first", "second")])
    assert next(results).key == "first"
    time.sleep(0.5)
    assert started.read_text().split() == ["first"]
    assert [result.key for result in results] == ["second"]


def test_a_run_that_is_left_early_does_not_answer_the_next_one(pool: WorkerPool) -> None:
    results = pool.run([job("one"), job("two", seconds=0.5)])
    next(results)
    results.close()
    assert [result.key for result in pool.run([job("three")])] == ["three"]


def test_workers_are_kept_between_runs_and_ended_by_close() -> None:
    with stub_pool() as pool:
        pids = {pool.run_in_order([job(f"n{n}", "pid")])[0].reason for n in range(2)}
        assert len(pids) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(int(pids.pop()), 0)


def test_a_worker_that_cannot_start_is_one_clear_error(approved: Approved) -> None:
    with (
        WorkerPool(1, execute="stub_execute:misspelt", environ=STUB) as pool,
        approved.raises(WorkerError),
    ):
        list(pool.run([job("never")]))


def test_a_worker_that_takes_for_ever_to_start_is_one_clear_error() -> None:
    with (
        WorkerPool(
            1, execute="stub_execute:execute", environ=STUB | {"A": "new server"}, start_seconds=0.0
        ) as pool,
        pytest.raises(WorkerError, match="no answer within"),
    ):
        pool.start()


def test_the_pool_knows_the_machine_once_a_worker_is_ready(pool: WorkerPool) -> None:
    environment = pool.start()
    assert environment.torch is not None and environment.num_cores >= 1
    assert environment.why_not("cpu") is None
    assert "unknown" in str(environment.why_not("tpu"))
