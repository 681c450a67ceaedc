"""Devices, exit codes, and a search for blame that ends in time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.core.cases import Case, Job, PoisonPlan
from harness.core.cause_codes import Code
from harness.core.errors import HarnessError
from harness.core.findings import Finding
from harness.core.records import CaseResult, Verdict
from harness.diagnose.blame import OUT_OF_TIME, find_blame
from harness.diagnose.budget import Budget
from harness.diagnose.run_jobs import exit_code, run_jobs
from harness.diagnose.session import Limits, Session, first_failure
from harness.judge.run_case import run_case
from harness.run.environment import Environment, Gpu
from harness.run.planning import JobPlanner, Wanted
from harness.run.runner import WorkerPool
from harness.scenario.load import load_scenarios
from harness.scenario.selection import select
from harness.store.run_folder import RunStore

GPU = Gpu(name="H", capability="9.0", memory_bytes=1)


class FakePool:
    """A pool whose cases fail exactly when `guilty` is poisoned."""

    def __init__(self, guilty: str = "", gpus: tuple[Gpu, ...] = ()) -> None:
        self.guilty = guilty
        self.environment = Environment(torch="2.13.0", cuda="13.0" if gpus else None, gpus=gpus)
        self.num_run = 0

    num_workers = 1

    def run_in_order(self, jobs: Sequence[Job]) -> list[CaseResult]:
        return list(self.run(jobs))

    def start(self) -> Environment:
        return self.environment

    def describe_kernels(
        self, plugins: Sequence[str] = (), cell: object = None
    ) -> list[dict[str, Any]]:
        name = "mine" if plugins else "triton"
        return [
            {
                "op": "mla_decode",
                "short_name": name,
                "why_not": {"cpu": "", "cuda": ""},
                "import_seconds": 1.0,
            },
            {
                "op": "mla_decode",
                "short_name": "tiled",
                "why_not": {"cpu": "", "cuda": "not made for it"},
                "import_seconds": 1.0,
            },
        ]

    def run(self, jobs: Sequence[Job], on_start: object = None) -> Iterator[CaseResult]:
        for job in jobs:
            self.num_run += 1
            yield result_of(job, guilty=self.guilty in job.poisoned_sites)


def result_of(job: Job, *, guilty: bool) -> CaseResult:
    findings = (Finding(oracle="finite", message="NaN"),) if guilty else ()
    verdict = Verdict.FAIL if guilty else Verdict.PASS
    return CaseResult(
        key=job.key,
        id=job.case.id,
        scenario="s",
        sites=job.sites,
        verdict=verdict,
        findings=findings,
    )


def failing_job(name: str = "a") -> tuple[Job, CaseResult]:
    case = Case(
        id=name,
        scenario="s",
        system="kernel",
        op="write_kv",
        poison=PoisonPlan(sites=("output", "kv.tail", "kv.free")),
    )
    job = Job(key=name, case=case)
    return job, result_of(job, guilty=True)


def kernel_case(kernel: str) -> Case:
    return Case(id="c", scenario="s", system="kernel", op="mla_decode", params={"kernel": kernel})


@pytest.mark.parametrize(
    ("wanted", "kernel", "gpus", "device"),
    [
        ("auto", "triton", (GPU,), "cuda"),
        ("auto", "tiled", (GPU,), "cpu"),
        ("auto", "triton", (), "cpu"),
        ("auto", "mine", (GPU,), "cuda"),
        ("cpu", "triton", (GPU,), "cpu"),
        ("cuda", "tiled", (), "cuda"),
    ],
)
def test_a_case_runs_on_the_gpu_only_where_its_kernel_does(
    wanted: str, kernel: str, gpus: tuple[Gpu, ...], device: str
) -> None:
    planner = JobPlanner(Wanted(device=wanted, plugins=(Path("/mine.py"),)), FakePool(gpus=gpus))  # type: ignore[arg-type]
    assert planner.job_of(kernel_case(kernel)).device == device


def test_the_blame_of_several_failures_is_found_together() -> None:
    failures = [failing_job(name) for name in "abc"]
    found = find_blame(FakePool("kv.tail"), failures)  # type: ignore[arg-type]
    assert [found[name][0].sites for name in "abc"] == [("kv.tail",)] * 3


def test_the_search_for_blame_ends_when_its_budget_is_spent_and_says_so() -> None:
    pool = FakePool("kv.tail")
    failures = [failing_job(str(n)) for n in range(50)]
    found = find_blame(pool, failures, Budget(0.0))  # type: ignore[arg-type]
    assert pool.num_run == 1 and len(found) == 50
    assert {(blame.sites, blame.cause, blame.how) for blame, _ in found.values()} == {
        ((), Code.OUT_OF_TIME, OUT_OF_TIME)
    }


def test_a_busy_machine_does_not_spend_the_budget_but_a_trial_that_waits_or_hangs_does() -> None:
    job, _ = failing_job("a")
    trial = CaseResult.of(job, Verdict.PASS, seconds=10.0, cpu_seconds=2.0)
    budget = Budget(100.0)
    budget.charge(trial, num_workers=2)
    assert budget.seconds == 99.0
    budget.charge(trial.but(cpu_seconds=0.001), num_workers=1)
    assert budget.seconds == 98.5
    budget.charge(trial.but(verdict=Verdict.CRASH, cpu_seconds=0.0), num_workers=1)
    assert budget.seconds == 88.5


def test_a_result_says_how_much_processor_time_it_took() -> None:
    result = run_case(Job(key="a", case=select(load_scenarios(None), ["merge-kernel"])[0]))
    assert result.cpu_seconds > 0


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ([Verdict.PASS, Verdict.SKIP], 0),
        ([Verdict.PASS, Verdict.FAIL], 1),
        ([Verdict.CRASH, Verdict.ERROR], 1),
        ([Verdict.PASS, Verdict.ERROR], 3),
    ],
)
def test_exit_codes_tell_a_regression_from_our_own_fault(
    verdicts: list[Verdict], code: int
) -> None:
    results = [CaseResult(key="k", id="k", scenario="s", verdict=verdict) for verdict in verdicts]
    assert exit_code(results) == code


def test_each_failure_of_a_session_is_blamed_until_its_limits_are_spent() -> None:
    session = Session(FakePool("kv.tail"), Limits(num_blamed=2))  # type: ignore[arg-type]
    assert set(session.explain([failing_job("a")])) == {"a"}
    assert set(session.explain([failing_job("b"), failing_job("c")])) == {"b"}
    assert session.explain([failing_job("d")]) == {}


def test_the_search_for_a_failing_case_stops_at_the_first() -> None:
    pool, jobs = FakePool("kv.tail"), [failing_job(name)[0] for name in "abc"]
    passing = jobs[0].model_copy(update={"sites": ()})
    job, result = first_failure(pool, [passing, *jobs[1:]])  # type: ignore[arg-type]
    assert job.key == result.key == "b" and pool.num_run == 2


def test_workers_that_cannot_start_end_the_work_in_one_error(tmp_path: Path) -> None:
    class Watcher:
        def on_start(self, job: Job) -> None: ...
        def on_result(self, result: CaseResult, *, announce: bool = True) -> None: ...

    store = RunStore.create(tmp_path, [failing_job()[0]], command="x")
    with (
        WorkerPool(1, execute="no_such_module:execute") as pool,
        pytest.raises(HarnessError) as caught,
    ):
        run_jobs(store, pool, Watcher())
    assert caught.value.exit_code == 3 and "no_such_module" in str(caught.value)
    assert [job.key for job in store.unfinished()] == ["a"]
