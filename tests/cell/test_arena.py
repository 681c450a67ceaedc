"""Tensors cross to a cell with their bytes, strides and gaps, and large pools by what they hold."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
import torch
from torch_poison.patterns import bits_view

from harness.cell import arena
from harness.memory import pools
from harness.ops.parts.cache_layouts import spread


@pytest.fixture
def file() -> Iterator[int]:
    made = os.memfd_create("arena")
    yield made
    os.close(made)


def wide() -> torch.Tensor:
    return torch.randn(6, 5, 40)[:, 1:4, 8:24]


def records() -> torch.Tensor:
    return torch.randint(0, 256, (3, 64, 656), dtype=torch.uint8)


def far_pages() -> torch.Tensor:
    pages = spread((3, 64, 8), torch.bfloat16, 2**31)
    pages.copy_(torch.randn(3, 64, 8))
    return pages


def large_pool() -> torch.Tensor:
    pool = pools.zeros(40_000, 64, 32, dtype=torch.bfloat16)
    pool[39_990:] = torch.randn(10, 64, 32)
    return pool


@pytest.mark.parametrize(
    "make",
    [
        wide,
        records,
        far_pages,
        large_pool,
        lambda: torch.zeros(0, 4),
        lambda: torch.full((5,), float("nan"), dtype=torch.float8_e4m3fn),
    ],
)
@pytest.mark.parametrize("fence", ["none", "after"])
def test_a_tensor_arrives_with_its_bits_and_its_strides(
    make: Callable[[], torch.Tensor], fence: str, file: int
) -> None:
    tensor = make()
    note = arena.note_of(tensor, 128)
    arena.write(file, tensor, note)
    found = arena.received(file, note, fence, "cpu")  # type: ignore[arg-type]
    assert found.stride() == tensor.stride() and found.dtype == tensor.dtype
    assert found.data_ptr() != tensor.data_ptr() or not tensor.numel()
    assert torch.equal(bits_view(found), bits_view(tensor))


def test_the_gaps_of_a_view_cross_too(file: int) -> None:
    tensor = torch.arange(40.0).view(4, 10)[:, :3]
    note = arena.note_of(tensor, 0)
    arena.write(file, tensor, note)
    found = arena.received(file, note, "none", "cpu")
    assert found.as_strided((4, 10), (10, 1), 0)[2, 7] == 27.0


def test_of_a_large_pool_only_pages_with_content_cross(file: int) -> None:
    note = arena.note_of(large_pool(), 0)
    assert note.parts is not None and note.num_bytes < note.room / 100


def test_a_file_that_was_cut_is_no_content(file: int) -> None:
    tensor = torch.ones(64)
    note = arena.note_of(tensor, 0)
    arena.write(file, tensor, note)
    os.ftruncate(file, 100)
    assert not arena.read_into(file, torch.zeros(64), note)
