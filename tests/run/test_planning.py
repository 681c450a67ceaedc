"""The device and the time limit of a job."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from harness.core.cases import Case, CellOf
from harness.run.planning import JobPlanner, Wanted
from harness.run.pool import JobPool

LONG_CASE = Case(id="a[x=1]", scenario="a", system="engine", params={}, tags=("engine", "long"))
SHORT_CASE = Case(id="a[x=0]", scenario="a", system="engine", params={}, tags=("engine",))


def seconds(kernel: str) -> float:
    case = Case(
        id="a",
        scenario="a",
        system="kernel",
        op="mla_decode",
        params={"kernel": kernel},
        tags=("gpu",),
    )
    return (
        JobPlanner(Wanted(timeout_seconds=20.0), cast("JobPool", None)).job_of(case).timeout_seconds
    )


def test_a_kernel_that_compiles_at_its_first_call_gets_the_time_for_it() -> None:
    assert seconds("tiled") == 20.0
    assert seconds("flashinfer-fa2") == 20.0 + 120.0


def test_a_kernel_that_was_judged_on_a_gpu_is_repeated_on_one() -> None:
    wanted = Wanted(device="cpu", cell=CellOf(server="/socket", device="cuda"))
    assert wanted.reproduction()["device"] == "cuda"


def test_a_call_under_triton_s_interpreter_gets_ten_times_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert seconds("tiled") == 200.0


def test_a_kernel_that_is_not_registered_has_the_limit_of_the_run() -> None:
    assert seconds("somebody-elses") == 20.0


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_case_that_serves_an_engine_leaves_the_gpu_to_the_process_that_it_starts(
    device: str,
) -> None:
    """A worker with a job on CUDA locks its GPU, so such cases would run one after another."""
    case = Case(id="a", scenario="a", system="vllm", params={})
    assert JobPlanner(Wanted(device=device), cast("JobPool", None)).job_of(case).device == "cpu"


@pytest.mark.parametrize(
    "wanted",
    [Wanted(), Wanted(tags=("not gpu",)), Wanted(seed=3)],
)
def test_a_run_of_everything_leaves_out_long_cases_and_counts_them(wanted: Wanted) -> None:
    planner = JobPlanner(wanted, cast("JobPool", None))
    assert planner.in_short([LONG_CASE, SHORT_CASE]) == [SHORT_CASE]
    assert planner.num_long == 1


@pytest.mark.parametrize(
    "wanted",
    [
        Wanted(selectors=("a",)),
        Wanted(selectors=("own.yaml",)),
        Wanted(tags=("long",)),
        Wanted(tags=("not gpu", "engine")),
        Wanted(kernels=("mine",)),
        Wanted(plugins=(Path("mine.py"),)),
        Wanted(fault="kv.skip-zero-new-blocks"),
    ],
)
def test_what_is_asked_for_by_name_has_its_long_cases(wanted: Wanted) -> None:
    planner = JobPlanner(wanted, cast("JobPool", None))
    assert planner.in_short([LONG_CASE, SHORT_CASE]) == [LONG_CASE, SHORT_CASE]
    assert planner.num_long == 0
