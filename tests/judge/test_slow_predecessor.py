"""A kernel behind a slow predecessor: an early one is found by its input and by its output, one
that waits is not.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_poison.patterns import Poison

from harness.core.catalog import KERNELS
from harness.core.errors import Refused
from harness.core.params import KernelParams
from harness.judge.targets.kernel import KernelTarget
from harness.judge.targets.slow_predecessor import (
    behind_slow_predecessor,
    late_inputs,
    restoring,
    slow_reader,
)
from harness.kernels.call import BoundKernel
from harness.memory.graph.early_launch import PROGRAMMATIC, edges_of
from harness.ops.parts.call import KernelCall
from harness.scenario.load import load_scenarios, shipped_directory
from harness.scenario.selection import select
from tests.transcripts import Approved


def case_of(name: str) -> Any:
    return select(load_scenarios(shipped_directory()), [name])[0]


def behind(
    call: KernelCall, kernel: Callable[..., Any], *, waits: bool
) -> Callable[..., tuple[Tensor, ...]]:
    """A device that runs the kernel after the copies of its predecessor, or before them.

    Outputs keep their memory.
    """
    first = kernel(*call.args, **call.keywords(is_captured=False))
    kept = () if first is None else first

    def launch(copies: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, ...]:
        def copy() -> None:
            for source, target in copies:
                target.copy_(source)

        if waits:
            copy()
        found = kernel(*call.args, **call.keywords(is_captured=False)) or ()
        for old, new in zip(kept, found, strict=True):
            old.copy_(new)
        if not waits:
            copy()
        return kept

    return launch


@pytest.mark.parametrize("name", ["merge-kernel", "write-kv-kernel", "quantize-kernel"])
@pytest.mark.parametrize("waits", [True, False])
def test_only_an_early_kernel_returns_what_the_inputs_held_before(name: str, waits: bool) -> None:
    case = case_of(name)
    target = KernelTarget(case)
    call = target.new_call(Poison("zeros", frozenset()), case.seed)
    spec = KERNELS.get(f"{case.op}/{case.params_as(KernelParams).kernel}")
    launch = behind(call, BoundKernel(spec, None), waits=waits)
    restore = restoring(spec, call)
    observed = [
        (name, one) for name, late in late_inputs(spec, call, restore) for one in late(launch)
    ]
    wrong = [
        name
        for name, one in observed
        if one.tensor.is_floating_point() and bool(one.tensor[one.live].isnan().any())
    ]
    assert observed and bool(wrong) is not waits
    guards = list(slow_reader(spec, launch))
    assert all(torch.equal(guard.before, guard.after) is waits for guard in guards)
    assert bool(guards) is (case.op != "write_kv")


def test_the_edges_of_a_graph_say_how_a_kernel_was_launched() -> None:
    addresses = ctypes.POINTER(ctypes.c_void_p)

    @ctypes.CFUNCTYPE(
        ctypes.c_int,
        ctypes.c_void_p,
        addresses,
        addresses,
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_size_t),
    )
    def edges(graph: Any, sources: Any, targets: Any, data: Any, count: Any) -> int:
        count[0] = 2
        if sources:
            sources[0], targets[0] = 16, 32
            sources[1], targets[1] = 32, 48
            # CUgraphEdgeData of cuda.h: its kind is the third of eight bytes.
            (ctypes.c_ubyte * 16).from_address(data)[2] = PROGRAMMATIC
        return 0

    driver = SimpleNamespace(cuGraphGetEdges_v2=edges)
    assert edges_of(1, driver) == [(16, 32, PROGRAMMATIC), (32, 48, 0)]


def test_a_slow_predecessor_needs_a_gpu() -> None:
    case = case_of("merge-kernel")
    slow = case.model_copy(
        update={"params": case.params.model_copy(update={"predecessor": "slow"})}
    )
    assert "needs a GPU" in str(KernelTarget.why_not(slow))
    assert KernelTarget.why_not(slow, "cuda") is None


def test_a_kernel_that_reads_device_values_on_the_host_is_refused_without_a_capture(
    approved: Approved,
) -> None:
    case = case_of("decode-kernel")
    call = KernelTarget(case).new_call(Poison("zeros", frozenset()), case.seed)
    with approved.raises(Refused):
        behind_slow_predecessor(KERNELS.get("mla_decode/tiled"), call)
