"""Device addresses with memory in some grains: which driver calls are made, tried with a driver
that notes them.
"""

from __future__ import annotations

import ctypes
import gc
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch_poison import device_ranges
from torch_poison.device_ranges import between_gaps, in_grains, pieces_of, with_memory_at
from torch_poison.errors import PoisonError

GRAIN, BASE = 2 * 2**20, 0x7F00_0000_0000


class Driver:
    """Keeps the memory that is mapped, as (first byte, number of bytes) from the start of the
    reserved range.
    """

    def __init__(self, room: int = 10**9) -> None:
        self.reserved = 0
        self.mapped: list[tuple[int, int]] = []
        self.open: set[tuple[int, int]] = set()
        self.room = room
        self.handles = 0
        self.sizes: dict[str, int] = {}
        """Record of the driver -> the bytes that it was given of one."""

    def cuMemGetAllocationGranularity(self, grain: Any, properties: Any, flags: Any) -> int:
        grain._obj.value = GRAIN
        return 0

    def cuMemAddressReserve(
        self, base: Any, size: Any, alignment: Any, address: Any, flags: Any
    ) -> int:
        base._obj.value, self.reserved = BASE, size.value
        return 0

    def cuMemCreate(self, handle: Any, size: Any, properties: Any, flags: Any) -> int:
        self.sizes["CUmemAllocationProp"] = ctypes.sizeof(properties._obj)
        self.room -= size.value
        self.handles += 1
        return 2 if self.room < 0 else 0

    def cuMemMap(self, start: Any, size: Any, offset: Any, handle: Any, flags: Any) -> int:
        self.mapped.append((start.value - BASE, size.value))
        return 0

    def cuMemSetAccess(self, start: Any, size: Any, access: Any, count: Any) -> int:
        self.sizes["CUmemAccessDesc"] = ctypes.sizeof(access._obj)
        assert access._obj.flags == 3 and access._obj.location.type == 1
        self.open.add((start.value - BASE, size.value))
        return 0

    def cuCtxSynchronize(self) -> int:
        return 0

    def cuMemUnmap(self, start: Any, size: Any) -> int:
        if (piece := (start.value - BASE, size.value)) in self.mapped:
            self.mapped.remove(piece)
        return 0

    def cuMemRelease(self, handle: Any) -> int:
        self.handles -= 1
        return 0

    def cuMemAddressFree(self, base: Any, size: Any) -> int:
        assert (base.value, size.value) == (BASE, self.reserved)
        self.reserved = 0
        return 0


class Shown:
    """What `torch.as_tensor` is given, kept as a tensor keeps it."""

    def __init__(self, kept: Any) -> None:
        self.kept = kept
        (self.size,) = kept.__cuda_array_interface__["shape"]
        self.first = kept.__cuda_array_interface__["data"][0] - BASE

    def __len__(self) -> int:
        return int(self.size)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(device_ranges, "_driver", lambda: made)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda: SimpleNamespace(synchronize=lambda: None)
    )
    monkeypatch.setattr(torch, "as_tensor", lambda kept, device: Shown(kept))
    return made


def test_pages_far_apart_get_memory_and_the_gaps_get_none(driver: Driver) -> None:
    stride, page = 2**31, 64 * 576
    pool = torch.empty(0, dtype=torch.bfloat16, device="meta").as_strided(
        (17, 64, 576), (stride, 576, 1)
    )
    size = (16 * stride + page) * 2
    shown = with_memory_at(size, pieces_of(pool))
    assert (driver.reserved >= size, shown.first, len(shown)) == (True, 0, size)
    assert driver.mapped == [(row * stride * 2, GRAIN) for row in range(17)]
    assert driver.open == set(driver.mapped), "all of it can be read and written"
    assert sum(length for _, length in driver.mapped) < 40 * 2**20 < 64 * 2**30 < size


def test_each_byte_of_a_row_lies_in_a_grain_and_neighbours_share_one() -> None:
    rows = torch.zeros(10_000).as_strided((5, 3, 2), (1000, 10, 2), 7)
    assert pieces_of(rows) == [((7 + row * 1000) * 4, (1 + 2 * 10 + 1 * 2) * 4) for row in range(5)]
    assert in_grains([(5, 10), (40, 20), (18, 2), (90, 10), (100, 0)], 16) == [(0, 64), (80, 32)]


def test_memory_of_a_range_is_given_back_with_the_tensor(driver: Driver) -> None:
    shown = between_gaps(3 * GRAIN - 5)
    assert (driver.reserved, driver.mapped, shown.first) == (5 * GRAIN, [(GRAIN, 3 * GRAIN)], GRAIN)
    del shown
    gc.collect()
    assert (driver.reserved, driver.mapped, driver.handles) == (0, [], 0)


def test_a_driver_without_room_is_an_error_that_keeps_nothing(driver: Driver) -> None:
    driver.room = 3 * GRAIN
    with pytest.raises(PoisonError, match="cuMemCreate of the CUDA driver failed with error 2"):
        with_memory_at(2**40, [(row * 2**35, 100) for row in range(8)])
    gc.collect()
    assert (driver.reserved, driver.mapped) == (0, [])


def test_the_records_of_the_driver_have_its_sizes(driver: Driver) -> None:
    """Those of cuda.h."""
    between_gaps(GRAIN)
    assert driver.sizes == {"CUmemAllocationProp": 32, "CUmemAccessDesc": 12}
