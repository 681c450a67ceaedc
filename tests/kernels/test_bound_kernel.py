"""What a kernel allocates is poisoned, and outputs are told apart from scratch."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_poison.errors
from torch_poison.patterns import Poison, bits_view, sentinel_bits

import harness
from harness.core.catalog import SITES
from harness.core.errors import IllegalAddress, KernelError
from harness.core.kernels import KernelSpec
from harness.kernels.call import BoundKernel
from tests.transcripts import Approved

ALL = frozenset(SITES.names())


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
    assert "tiled.py:_attend" in parts and not any(parts.values())


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


def test_a_kernel_that_allocates_its_outputs_first_and_in_order_runs_once() -> None:
    calls: list[int] = []

    def count(q: torch.Tensor, *rest: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(1)
        out, lse = torch.empty(5), torch.empty(4)
        count.scratch = torch.empty(3)  # type: ignore[attr-defined]
        return out, lse

    bound = BoundKernel(spec("mla_decode", count), Poison("nan", ALL))
    out, lse = bound(torch.ones(2))
    assert len(calls) == 1
    assert bool((bits_view(out) == site_bits("output")).all())
    assert bool((bits_view(lse) == site_bits("lse")).all())
    scratch = count.scratch  # type: ignore[attr-defined]
    assert bool((bits_view(scratch) == site_bits("workspace")).all())


def test_a_kernel_that_allocates_nothing_by_itself_runs_once() -> None:
    calls: list[int] = []

    def count(x: torch.Tensor, *, num_live: int | None = None) -> torch.Tensor:
        calls.append(1)
        return x + 1

    BoundKernel(spec("quantize_fp8", count), Poison("nan", ALL))(torch.ones(2))
    assert len(calls) == 1


def test_a_kernel_that_allocates_scratch_first_runs_again_until_that_is_known() -> None:
    calls: list[int] = []

    def count(x: torch.Tensor, *, num_live: int | None = None) -> torch.Tensor:
        calls.append(1)
        if len(x) < 4:
            torch.empty(1)
            return torch.empty_like(x)
        # With four rows the scratch comes last.
        out = torch.empty_like(x)
        torch.empty(1)
        return out

    bound = BoundKernel(spec("quantize_fp8", count), Poison("nan", ALL))
    for rows, so_far in ((2, 2), (2, 3), (3, 4), (4, 6), (2, 7)):
        out = bound(torch.ones(rows))
        assert bool((bits_view(out) == site_bits("output")).all())
        assert len(calls) == so_far, f"after a call with {rows} rows"


def test_a_kernel_without_outputs_runs_once_and_its_arguments_are_its_own() -> None:
    def increment(kv_c: torch.Tensor, *rest: Any, **options: Any) -> None:
        kv_c.add_(1)

    tensor = torch.zeros(2)
    BoundKernel(spec("write_kv", increment), Poison("nan", ALL))(tensor)
    assert tensor.tolist() == [1.0, 1.0]


def test_a_kernel_without_poison_is_called_plainly() -> None:
    bound = BoundKernel(spec("quantize_fp8", lambda x: x + 1), None)
    assert bound(torch.zeros(2)).tolist() == [1.0, 1.0]


def test_what_a_kernel_raises_is_told_apart_from_an_illegal_address(approved: Approved) -> None:
    def raising(error: Exception) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            raise error

        return run

    with approved.raises(KernelError) as caught:
        BoundKernel(spec("quantize_fp8", raising(ValueError("no"))), Poison("nan", ALL))(
            torch.ones(1)
        )
    assert re.fullmatch(r"test_bound_kernel\.py:\d+ in \w+: raise \w+", caught.value.at)
    for error in (IllegalAddress("x"), torch_poison.errors.IllegalAddress("x", tensor="slots")):
        with pytest.raises(IllegalAddress, match="x"):
            BoundKernel(spec("quantize_fp8", raising(error)), Poison("nan", ALL))(torch.ones(1))
