"""What a kernel allocates is poisoned, and outputs are told apart from scratch."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import harness
from harness.core.catalog import SITES
from harness.core.errors import IllegalAddress, KernelError
from harness.core.kernels import KernelSpec
from harness.kernels.call import BoundKernel
from harness.memory.poison.allocations import AllocationPoison, only_writes
from harness.memory.poison.patterns import OUT_OF_RANGE, Poison, bits_view, sentinel_bits

ALL = frozenset(SITES.names())
SCRATCH = sentinel_bits(torch.float32, "workspace")


FACTORIES: list[Callable[[], torch.Tensor]] = [
    lambda: torch.empty(3, 4),
    lambda: torch.empty_like(torch.ones(3, 4)),
    lambda: torch.ones(2).new_empty(5),
    lambda: torch.empty_strided((2, 3), (8, 2)),
    lambda: torch.ones(2).new_empty_strided((2, 3), (3, 1)),
    lambda: torch.empty_permuted((2, 3), (1, 0)),
    lambda: torch.empty(0).resize_(6),
    lambda: torch.empty(0).resize_as_(torch.ones(2, 3)),
    lambda: torch.empty(6, out=torch.empty(0)),
    lambda: torch.Tensor(4),
]


@pytest.mark.parametrize("number", range(len(FACTORIES)))
def test_every_way_to_allocate_gives_poison(number: int) -> None:
    with AllocationPoison(Poison("nan", ALL)):
        tensor = FACTORIES[number]()
    assert bool((bits_view(tensor) == SCRATCH).all())


@pytest.mark.parametrize("number", range(len(FACTORIES)))
def test_a_site_that_is_not_poisoned_gives_zeros(number: int) -> None:
    with AllocationPoison(Poison("nan", ALL - {"workspace"})):
        tensor = FACTORIES[number]()
    assert bool((tensor == 0).all())


def test_a_part_that_only_writes_is_not_seen_and_the_rest_of_its_kernel_is() -> None:
    given = torch.zeros(3)
    with AllocationPoison(Poison("nan", ALL)) as mode:
        only_writes(lambda: given.add_(1))()
        after = torch.empty(3)
    assert given.tolist() == [1, 1, 1]
    assert len(mode.allocations) == 1 and bool((bits_view(after) == SCRATCH).all())


def test_no_part_that_only_writes_allocates() -> None:
    parts = {
        f"{path.name}:{function.name}": re.findall(
            r"torch\.empty|\.new_empty|\.resize|torch\.Tensor\(", ast.unparse(function)
        )
        for path in Path(harness.__path__[0]).rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef)
        and "only_writes" in map(ast.unparse, function.decorator_list)
    }
    assert "decode.py:_attend" in parts and not any(parts.values())


def test_the_lines_that_allocated_what_is_still_unwritten_are_known() -> None:
    with AllocationPoison(
        Poison("nan", ALL), {0: "context.output"}, keep=False, notes_lines=True
    ) as mode:
        partly = torch.empty(2, 3)
        whole = torch.empty_like(partly)
        partly[0], whole[:] = 1, 1
    (line,) = mode.lines.pop("context.output")
    assert line.startswith("test_allocations.py:") and line.endswith(": partly = torch.empty(2, 3)")
    assert not mode.lines.keys() - {"context.output"}


def test_gaps_of_a_strided_allocation_are_poisoned_too() -> None:
    with AllocationPoison(Poison("nan", ALL)):
        tensor = torch.empty_strided((2, 3), (8, 2))
    whole = torch.empty(0).set_(tensor.untyped_storage())
    assert bool((bits_view(whole) == SCRATCH).all())


def test_resizing_poisons_only_what_is_new() -> None:
    tensor = torch.arange(3.0)
    with AllocationPoison(Poison("nan", ALL)):
        tensor.resize_(5)
    assert tensor[:3].tolist() == [0.0, 1.0, 2.0]
    assert bool((bits_view(tensor[3:]) == SCRATCH).all())


def test_what_a_composite_operation_allocates_inside_is_seen() -> None:
    with AllocationPoison(Poison("nan", ALL)) as mode:
        dropped = torch.nn.functional.dropout(torch.ones(1000), 0.5)
    assert len(mode.allocations) == 1
    assert sorted(dropped.unique().tolist()) == [0.0, 2.0]


def test_memory_that_an_operation_writes_itself_is_left_alone() -> None:
    with AllocationPoison(Poison("nan", ALL)):
        assert torch.zeros(3).tolist() == [0.0] * 3
        assert torch.full((2,), 7.0).tolist() == [7.0] * 2
        assert torch.arange(3).tolist() == [0, 1, 2]
        assert bool((torch.ones(2, 2) @ torch.ones(2, 2) == 2).all())
        assert torch.cat((torch.ones(1), torch.ones(1))).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn]
)
@pytest.mark.parametrize("pattern", ["nan", "max", "inf", "zeros", "random"])
def test_every_pattern_fills_every_float_type(dtype: torch.dtype, pattern: str) -> None:
    with AllocationPoison(Poison(pattern, ALL)):
        values = torch.empty(64, dtype=dtype).double()
    if pattern == "nan":
        assert bool(values.isnan().all())
    elif pattern == "inf":
        assert not bool((values.abs() < torch.finfo(dtype).max).any())
    else:
        assert bool(values.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_indices_hold_a_trap_or_in_strict_mode_no_index_at_all(dtype: torch.dtype) -> None:
    def allocate(**options: Any) -> torch.Tensor:
        with AllocationPoison(Poison("nan", ALL, **options)):
            return torch.empty(4, dtype=dtype)

    assert allocate().tolist() == [-1] * 4
    # As int32, because a reader of either width must fall into it.
    assert allocate(strict=True).view(torch.int32).unique().tolist() == [OUT_OF_RANGE]
    assert allocate(traps={"workspace": 9}).view(torch.int32).unique().tolist() == [9]


def spec(op: str, function: Callable[..., Any]) -> KernelSpec:
    return KernelSpec(op, "test", "", function)


def site_bits(site: str, dtype: torch.dtype = torch.float32) -> int:
    return sentinel_bits(dtype, site)


def unwritten(q: torch.Tensor, *rest: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Allocates scratch, then lse, scratch again, then out; writes nothing but what it found in its
    scratch.
    """
    first = torch.empty(3)
    lse = torch.empty(4)
    second = torch.empty_like(first)
    out = torch.empty(5)
    assert float(first.nansum()) == float(second.nansum()) == 0.0
    unwritten.scratch = bits_view(torch.cat((first, second))).tolist()  # type: ignore[attr-defined]
    return out, lse


def test_outputs_and_scratch_are_poisoned_as_their_own_sites() -> None:
    bound = BoundKernel(spec("mla_decode", unwritten), Poison("nan", ALL))
    for _ in range(2):
        out, lse = bound(torch.ones(2))
        assert bool((bits_view(out) == site_bits("output")).all())
        assert bool((bits_view(lse) == site_bits("lse")).all())
        assert set(unwritten.scratch) == {site_bits("workspace")}  # type: ignore[attr-defined]


def test_an_output_that_is_a_view_of_an_allocation_is_known() -> None:
    bound = BoundKernel(
        spec("mla_decode", lambda q: (torch.empty(2, 6)[:, :3], torch.empty(1))), Poison("nan", ALL)
    )
    assert bool((bits_view(bound(torch.ones(1))[0].contiguous()) == site_bits("output")).all())


def test_tensors_of_a_plan_are_poisoned_as_sched_meta() -> None:
    class Plan:
        def __init__(self) -> None:
            self.splits = torch.empty(3, dtype=torch.float32)

    bound = BoundKernel(
        spec("mla_decode_plan", lambda lengths, *, num_heads: Plan()), Poison("nan", ALL)
    )
    plan = bound(torch.ones(1), num_heads=2)
    assert bool((bits_view(plan.splits) == site_bits("sched_meta")).all())


def test_a_kernel_that_is_called_with_known_shapes_runs_once() -> None:
    calls: list[int] = []

    def count(x: torch.Tensor, *, num_live: int | None = None) -> torch.Tensor:
        calls.append(1)
        return torch.empty_like(x)

    bound = BoundKernel(spec("quantize_fp8", count), Poison("nan", ALL))
    bound(torch.ones(2))
    assert len(calls) == 2
    bound(torch.zeros(2))
    assert len(calls) == 3
    bound(torch.zeros(3))
    assert len(calls) == 5


def test_a_kernel_without_outputs_runs_once_and_its_arguments_are_its_own() -> None:
    def increment(kv_c: torch.Tensor, *rest: Any, **options: Any) -> None:
        kv_c.add_(1)

    tensor = torch.zeros(2)
    BoundKernel(spec("write_kv", increment), Poison("nan", ALL))(tensor)
    assert tensor.tolist() == [1.0, 1.0]


def test_a_kernel_without_poison_is_called_plainly() -> None:
    bound = BoundKernel(spec("quantize_fp8", lambda x: x + 1), None)
    assert bound(torch.zeros(2)).tolist() == [1.0, 1.0]


def test_what_a_kernel_raises_is_told_apart_from_an_illegal_address() -> None:
    def raising(error: Exception) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            raise error

        return run

    with pytest.raises(KernelError, match="quantize_fp8/test raised ValueError: no") as caught:
        BoundKernel(spec("quantize_fp8", raising(ValueError("no"))), Poison("nan", ALL))(
            torch.ones(1)
        )
    assert re.fullmatch(r"test_allocations\.py:\d+ in \w+: raise \w+", caught.value.at)
    with pytest.raises(IllegalAddress):
        BoundKernel(spec("quantize_fp8", raising(IllegalAddress("x"))), Poison("nan", ALL))(
            torch.ones(1)
        )
