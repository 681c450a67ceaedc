"""The results of a pool as a run takes them: a kernel that cannot be called ends it, before its
case is stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.core.cases import Case, Job
from harness.core.cause_codes import Code
from harness.core.errors import InputError
from harness.core.findings import Finding
from harness.core.records import CaseResult, Verdict
from harness.diagnose.repeated_crashes import RepeatedCrashes
from harness.diagnose.run_jobs import run_jobs
from harness.judge.run_case import run_case
from harness.run.environment import Environment
from harness.run.pool import JobPool
from harness.store.run_folder import RunStore
from tests.transcripts import Approved


def job(name: str, *, plugins: tuple[str, ...] = ("mine.py",), kernel: str = "mine") -> Job:
    case = Case(
        id=f"s[n={name}]",
        scenario="s",
        system="kernel",
        op="write_kv",
        params={"kernel": kernel},
        named=("kernel",),
    )
    return Job(key=case.id, case=case, plugins=plugins)


def crash(
    of: Job, line: int = 3, error: str = "ValueError", kernel: str = "write_kv/mine"
) -> CaseResult:
    at = f"mine.py:{line} in f: raise" if line else ""
    finding = Finding(
        oracle="crash", message="raised", cause=Code.RAISED, error=error, at=at, kernel=kernel
    )
    return CaseResult.of(of, Verdict.CRASH, findings=(finding,))


class Scripted(JobPool):
    """Answers each job as it is told."""

    num_workers = 1

    def __init__(self, answer: Callable[[Job], CaseResult]) -> None:
        super().__init__()
        self._answer = answer

    def close(self) -> None: ...

    def start(self) -> Environment:
        return Environment()

    def describe_kernels(self, plugins: Sequence[str] = ()) -> list[dict[str, Any]]:
        return []

    def _run(
        self, waiting: deque[Job], on_start: Callable[[Job], None] | None
    ) -> Generator[CaseResult]:
        while waiting:
            yield self._answer(waiting.popleft())


class Silent:
    def on_start(self, job: Job) -> None: ...

    def on_result(self, result: CaseResult, *, announce: bool = True) -> None: ...


def ran(
    folder: Path, answer: Callable[[Job], CaseResult], jobs: list[Job], **how: Any
) -> dict[str, int]:
    store = RunStore.create(folder, jobs, command="x")
    run_jobs(store, Scripted(answer), Silent(), **how)
    verdicts = [result.verdict.value for result in store.results()]
    return {name: verdicts.count(name) for name in dict.fromkeys(verdicts)}


def test_a_plug_in_that_does_not_import_in_a_worker_ends_the_run_and_leaves_its_case_unfinished(
    tmp_path: Path,
) -> None:
    file = tmp_path / "broken.py"
    file.write_text("import torch\nimport no_such_package_of_mine\n")
    first, second = job("1"), job("2", plugins=(str(file),))
    store = RunStore.create(tmp_path, [first, second], command="x")

    def answer(of: Job) -> CaseResult:
        return CaseResult.of(of, Verdict.PASS) if of.key == first.key else run_case(of)

    with pytest.raises(
        InputError, match=r"broken\.py:2: ModuleNotFoundError.*no_such_package_of_mine"
    ):
        run_jobs(store, Scripted(answer), Silent())
    assert [left.key for left in store.unfinished()] == [second.key]


def test_three_crashes_alike_end_the_kernel(tmp_path: Path) -> None:
    jobs = [job(str(number)) for number in range(8)]
    assert ran(tmp_path / "a", crash, jobs) == {"crash": 3, "skip": 5}
    assert ran(tmp_path / "b", crash, jobs, keep_going=True) == {"crash": 8}


@pytest.mark.parametrize(
    "answer",
    [
        lambda of: crash(of, line=int(of.key[4:-1])),
        lambda of: crash(of, error=of.key),
        lambda of: crash(of, line=0),
        lambda of: crash(of, kernel="write_kv/other"),
        lambda of: CaseResult.of(of, Verdict.FAIL, findings=crash(of).findings),
    ],
    ids=["other lines", "other errors", "no line", "another kernel", "failures"],
)
def test_what_is_not_alike_is_run_to_the_end(
    tmp_path: Path, answer: Callable[[Job], CaseResult]
) -> None:
    assert "skip" not in ran(tmp_path, answer, [job(str(number)) for number in range(1, 6)])


def test_a_kernel_that_no_user_wrote_is_run_to_the_end(tmp_path: Path) -> None:
    jobs = [job(str(number), plugins=(), kernel="torch") for number in range(5)]
    assert ran(tmp_path, lambda of: crash(of, kernel="write_kv/torch"), jobs) == {"crash": 5}


def test_of_the_cases_that_wait_those_of_other_kernels_stay(approved: Approved) -> None:
    crashes, waiting = RepeatedCrashes(), deque([job("1"), job("2", kernel="other")])
    left_out = [
        one for _ in range(3) for one in crashes.left_out_after(job("0"), crash(job("0")), waiting)
    ]
    assert [one.id for one in left_out] == ["s[n=1]"] and [one.case.id for one in waiting] == [
        "s[n=2]"
    ]
    assert left_out[0].cause == Code.LEFT_OUT
    approved(left_out[0].reason)
