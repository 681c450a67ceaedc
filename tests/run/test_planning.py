"""The device and the time limit of a job."""

from __future__ import annotations

from typing import cast

import pytest

from harness.core.cases import Case, CellOf
from harness.run.planning import JobPlanner, Wanted
from harness.run.pool import JobPool


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


def test_a_kernel_that_is_not_registered_has_the_limit_of_the_run() -> None:
    assert seconds("somebody-elses") == 20.0


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_case_that_serves_an_engine_leaves_the_gpu_to_the_process_that_it_starts(
    device: str,
) -> None:
    """A worker with a job on CUDA locks its GPU, so such cases would run one after another."""
    case = Case(id="a", scenario="a", system="vllm", params={})
    assert JobPlanner(Wanted(device=device), cast("JobPool", None)).job_of(case).device == "cpu"
