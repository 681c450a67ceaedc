"""A kernel that compiles on its first call holds one worker, not all of them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.core.cases import Case, Job
from harness.core.catalog import KERNELS
from harness.core.kernels import KernelSpec
from harness.core.records import CaseResult, Verdict
from harness.ops.write_kv.params import WriteKvParams
from harness.run import child
from harness.run.runner import WorkerPool
from tests.transcripts import Approved
from tests.waiting import HANG_SECONDS, end_limits_when

STUB = {"PYTHONPATH": str(Path(__file__).parent)}


@pytest.fixture(autouse=True)
def slow_kernel() -> Iterator[None]:
    with KERNELS.scoped(
        KernelSpec(op="write_kv", short_name="slow", summary="", impl="", compile_seconds=1.0)
    ):
        yield


def job(name: str, kernel: str, *tags: str, timeout: float = HANG_SECONDS) -> Job:
    params = WriteKvParams(kernel=kernel)
    case = Case(id=name, scenario="stub", system="kernel", op="write_kv", params=params, tags=tags)
    return Job(key=name, case=case, timeout_seconds=timeout)


def run(*jobs: Job) -> list[CaseResult]:
    # A worker may take as long to start as it likes, so that only the limit of a case can end one.
    with WorkerPool(
        3, execute="stub_execute:execute", environ=STUB, start_seconds=math.inf
    ) as pool:
        return list(pool.run(jobs))


def test_others_wait_until_one_has_compiled_and_workers_run_other_kernels(tmp_path: Path) -> None:
    started, until = tmp_path / "started", tmp_path / "until"
    first = job("first", "slow", f"started={started}", f"until={until}")
    others = [job(f"other {n}", "slow", f"started={started}") for n in range(3)]
    torch = [job(f"torch {n}", "torch") for n in range(3)]
    with WorkerPool(3, execute="stub_execute:execute", environ=STUB) as pool:
        results = pool.run([first, *others, *torch])
        assert {next(results).id for _ in torch} == {one.case.id for one in torch}
        time.sleep(0.3)
        assert started.read_text() == "first\n"
        until.touch()
        assert sorted(result.id for result in results) == ["first", "other 0", "other 1", "other 2"]


def test_what_does_not_compile_in_time_is_an_error_of_each_case_and_started_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    started = tmp_path / "started"
    end_limits_when(monkeypatch, child, started.exists)
    hangs = job("first", "slow", f"started={started}", "does=hang", timeout=1.0)
    others = [job(f"other {n}", "slow", f"started={started}") for n in range(3)]
    results = {result.id: result for result in run(hangs, *others, job("torch", "torch"))}
    assert started.read_text() == "first\n"
    assert results["first"].verdict is Verdict.CRASH and results["torch"].verdict is Verdict.PASS
    for other in others:
        assert results[other.case.id].verdict is Verdict.ERROR
        approved(results[other.case.id].reason)
