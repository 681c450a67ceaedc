"""The time limit of a job: the run's, and what the first call of a kernel may compile."""

from __future__ import annotations

from typing import cast

from harness.core.cases import Case
from harness.run.planning import Planner, Wanted
from harness.run.pool import Pool


def seconds(kernel: str) -> float:
    case = Case(id="a", scenario="a", system="kernel", op="mla_decode", params={"kernel": kernel}, tags=("gpu",))
    return Planner(Wanted(timeout_seconds=20.0), cast("Pool", None)).job_of(case).timeout_seconds


def test_a_kernel_that_compiles_at_its_first_call_gets_the_time_for_it() -> None:
    assert seconds("tiled") == 20.0
    assert seconds("flashinfer-fa2") == 20.0 + 120.0


def test_a_kernel_that_is_not_registered_has_the_limit_of_the_run() -> None:
    assert seconds("somebody-elses") == 20.0
