"""What a thread allocates is poisoned, as memory of its site."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_poison.allocations import AllocationPoison, only_writes
from torch_poison.patterns import OUT_OF_RANGE, Poison, bits_view, sentinel_bits

ALL = frozenset({"workspace", "output"})
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


def test_the_lines_that_allocated_what_is_still_unwritten_are_known() -> None:
    with AllocationPoison(Poison("nan", ALL), {0: "output"}, keep=False, notes_lines=True) as mode:
        partly = torch.empty(2, 3)
        whole = torch.empty_like(partly)
        partly[0], whole[:] = 1, 1
    (line,) = mode.lines.pop("output")
    assert line.startswith("test_allocations.py:") and line.endswith(": partly = torch.empty(2, 3)")
    assert not mode.lines.keys() - {"output"}


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
