"""A kernel behind a held producer: work that waits for no event is found by the pair, sound kernels
are silent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_poison.patterns import Poison

from harness.core.catalog import KERNELS
from harness.core.params import KernelParams
from harness.evidence.moves import ordered
from harness.evidence.records import Evidence, Run
from harness.judge.targets.delayed_streams import without_order
from harness.judge.targets.kernel import KernelTarget
from harness.judge.verdict import judge
from harness.scenario.load import load_scenarios, shipped_directory
from harness.scenario.selection import select
from tests.transcripts import Approved

CASES = {
    "merge-kernel": {"prefix_out", "prefix_lse", "suffix_out", "suffix_lse"},
    "write-kv-kernel": {"kv_c", "k_pe", "kv_cache"},
    "quantize-kernel": {"x"},
}
"""The first case of a scenario, and the inputs whose late write must be seen."""


def case_of(name: str) -> Any:
    return select(load_scenarios(shipped_directory()), [name])[0]


class Device:
    """Runs a call as a device would: sound, or with one `error` in its order."""

    def __init__(self, error: str) -> None:
        self._error = error

    def __call__(
        self,
        function: Callable[[], Any],
        copies: Sequence[tuple[Tensor, Tensor]],
        after: Callable[[], Any] | None,
        in_order: bool,
    ) -> tuple[Tensor, ...]:
        error = "" if in_order else self._error
        if error == "leaves":
            return tuple(
                torch.full_like(one, float("nan"), dtype=torch.float32) for one in function()
            )
        run = after if error == "rewrites" and after is not None else function
        found: Any = run() if error == "reads" else None
        for source, target in copies:
            target.copy_(source)
        found = run() if error != "reads" else found
        return tuple(one.clone() for one in found or ())


def moved(name: str, error: str) -> tuple[Any, Any]:
    case = case_of(name)
    target, poison = KernelTarget(case), Poison("zeros", frozenset())
    call, other = (target.new_call(poison, case.seed ^ number) for number in (0, 1))
    spec = KERNELS.get(f"{case.op}/{case.params_as(KernelParams).kernel}")
    return case, without_order(case, spec, call, other, Device(error))


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_that_waits_for_its_caller_is_silent(name: str) -> None:
    _, found = moved(name, "")
    assert found.races == [] and found.num_pairs >= 2 + len(CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_that_does_not_wait_is_named_with_the_producer_of_each_input(name: str) -> None:
    case, found = moved(name, "reads")
    assert {race.span[0] for race in found.races} >= CASES[name]
    outcome = judge(Evidence(case, [Run("nan", [found])]))
    first = next(one for one in outcome.findings if one.oracle == "ordered")
    assert first.site is None and first.where == ""
    assert first.cause.startswith("unordered")
    assert (
        f"the producer of {first.tensor} on stream producer" in first.message
        and case.op in first.message
    )


def test_outputs_that_come_after_their_reader_are_named_alone(approved: Approved) -> None:
    case, found = moved("merge-kernel", "leaves")
    (finding,) = ordered(Evidence(case, [Run("nan", [found])])).findings
    assert finding.tensor == "outputs"
    approved(finding.message)


def test_host_memory_that_changes_before_its_copy_is_named_with_the_next_call(
    approved: Approved,
) -> None:
    case, found = moved("merge-kernel", "rewrites")
    (finding,) = ordered(Evidence(case, [Run("nan", [found])])).findings
    assert "host memory" in finding.tensor and finding.cause.startswith("unordered")
    approved(finding.message)


def test_a_kernel_that_is_wrong_in_the_right_order_too_is_no_finding_of_order() -> None:
    case = case_of("merge-kernel")
    target, poison = KernelTarget(case), Poison("zeros", frozenset())
    call, other = (target.new_call(poison, case.seed ^ number) for number in (0, 1))

    def zeros(function: Any, *more: Any) -> tuple[Tensor, ...]:
        return tuple(torch.zeros_like(one) for one in function())

    assert without_order(case, target.spec, call, other, zeros).races == []


def test_delayed_streams_need_a_gpu_and_room_for_copies() -> None:
    case = case_of("merge-kernel")
    delayed = case.model_copy(
        update={"params": case.params.model_copy(update={"streams": "delayed"})}
    )
    assert (
        "needs a GPU" in str(KernelTarget.why_not(delayed))
        and KernelTarget.why_not(delayed, "cuda") is None
    )
