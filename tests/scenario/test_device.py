"""What a case runs on CUDA: the kernels' twins, under the same id and seed."""

from __future__ import annotations

import pytest

from harness.core.cases import Case
from harness.core.catalog import KERNELS
from harness.scenario.expand import on_device

ENGINE = {
    "decode_kernel": "tiled-multiply",
    "plan_kernel": "tiled",
    "write_kernel": "torch",
    "kv": "bf16",
}


def case(system: str, params: dict[str, str], op: str | None = None) -> Case:
    return Case(id="a[b=c]", scenario="a", system=system, op=op, params=params, seed=7)


@pytest.mark.parametrize(
    ("system", "params"), [("engine", ENGINE), ("accuracy", ENGINE | {"task": "gsm_symbolic"})]
)
def test_the_engine_takes_kernels_that_a_graph_can_capture(
    system: str, params: dict[str, str]
) -> None:
    there = on_device(case(system, params), "cuda")
    assert (there.id, there.seed, there.params.kv) == ("a[b=c]", 7, "bf16")
    assert there.params.decode_kernel == "triton-multiply"
    assert "cuda" in KERNELS.get(f"mla_decode_plan/{there.params.plan_kernel}").devices


def test_a_kernel_case_runs_the_kernel_that_it_names() -> None:
    one = case("kernel", {"kernel": "tiled"}, "mla_decode")
    assert on_device(one, "cuda") is one


def test_nothing_changes_on_a_cpu() -> None:
    one = case("engine", ENGINE)
    assert on_device(one, "cpu") is one
