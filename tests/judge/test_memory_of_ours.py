"""Memory that the harness itself needs, and that does not fit: a skip with the size, never an
error.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_poison.errors import PoisonError

from harness.core.cases import Job
from harness.core.cause_codes import Code
from harness.core.errors import NoMemoryError
from harness.core.records import CaseResult, Verdict
from harness.judge.run_case import run_case
from harness.judge.targets.kernel import KernelTarget
from harness.memory import pools
from harness.ops.parts import cache_layouts
from harness.ops.parts import call as kernel_call
from harness.ops.parts.call import placed
from harness.scenario.expand import expand
from harness.scenario.load import load_scenarios
from tests.transcripts import Approved

ROOM = 16 * 2**31 + 64 * 24
POOL = torch.empty(ROOM, dtype=torch.bfloat16, device="meta").as_strided(
    (17, 64, 24), (2**31, 24, 1)
)
"""A pool with 2^31 elements from page to page, as `decode-conditions` has it."""


def test_a_pool_that_does_not_fit_gets_memory_for_its_pages_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, Any]] = []

    def with_memory_at(num_bytes: int, used: Any) -> torch.Tensor:
        asked.append((num_bytes, used))
        return torch.empty(num_bytes, dtype=torch.uint8, device="meta")

    monkeypatch.setattr(kernel_call, "with_memory_at", with_memory_at)
    monkeypatch.setattr(torch, "empty", _refusing(torch.empty))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (30 * 2**30, 80 * 2**30))
    moved = placed(POOL, "cuda")
    ((num_bytes, used),) = asked
    assert num_bytes == 2 * ROOM and used == [(row * 2**32, 64 * 24 * 2) for row in range(17)]
    assert (moved.dtype, moved.shape, moved.stride()) == (POOL.dtype, POOL.shape, POOL.stride())


def test_a_pool_that_cannot_be_mapped_either_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch,
    approved: Approved,
) -> None:
    def with_memory_at(num_bytes: int, used: Any) -> torch.Tensor:
        raise PoisonError("cuMemCreate of the CUDA driver failed with error 2")

    monkeypatch.setattr(kernel_call, "with_memory_at", with_memory_at)
    monkeypatch.setattr(torch, "empty", _refusing(torch.empty))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (30 * 2**30, 80 * 2**30))
    with approved.raises(NoMemoryError):
        placed(POOL, "cuda")


def _refusing(empty: Any) -> Any:
    """`torch.empty` on a GPU without room."""

    def refuse(*size: Any, device: Any = "cpu", **more: Any) -> torch.Tensor:
        if str(device) == "cuda":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 64.00 GiB.")
        return empty(*size, device=device, **more)

    return refuse


def test_a_range_of_addresses_that_the_system_refuses_is_named(
    monkeypatch: pytest.MonkeyPatch,
    approved: Approved,
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(pools.mmap, "mmap", refuse)
    with approved.raises(NoMemoryError):
        cache_layouts.spread((17, 64, 24), torch.bfloat16, 2**31)


def ended(error: Exception, monkeypatch: pytest.MonkeyPatch) -> CaseResult:
    """How a case ends in whose target an allocation of ours raises `error`."""

    def run(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(KernelTarget, "run", run)
    case = next(
        case
        for scenario in load_scenarios()
        if scenario.name == "write-kv-kernel"
        for case in expand(scenario)
    )
    return run_case(Job(key="k", case=case))


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            NoMemoryError("an input with its gaps needs 64.0 GiB"),
            "an input with its gaps needs 64.0 GiB",
        ),
        (
            torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 128.00 GiB.\nMore advice."
            ),
            "the harness needs more memory: CUDA out of memory. Tried to allocate 128.00 GiB.",
        ),
        (MemoryError("4 TiB"), "the harness needs more memory: 4 TiB"),
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: 9"
                " bytes"
            ),
            (
                "the harness needs more memory: [enforce fail at alloc_cpu.cpp:121]"
                " DefaultCPUAllocator: "
            ),
        ),
    ],
)
def test_our_own_memory_that_does_not_fit_is_a_skip(
    error: Exception, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ended(error, monkeypatch)
    assert (found.verdict, found.cause) == (
        Verdict.SKIP,
        Code.NO_MEMORY,
    ) and found.reason.startswith(says)


def test_another_error_of_ours_stays_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ended(RuntimeError("a bug of ours"), monkeypatch).verdict is Verdict.ERROR


def test_a_pool_that_fits_is_moved_with_its_strides() -> None:
    rows = torch.arange(60.0).view(6, 10)[::2, 3:7]
    assert torch.equal(placed(rows, "cpu"), rows) and placed(rows, "cpu").stride() == rows.stride()
