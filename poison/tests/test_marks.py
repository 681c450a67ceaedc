"""A mark names the line that allocated, also after a cast, and no ordinary value is one."""

from __future__ import annotations

import pytest
import torch
from torch_poison.marks import (
    FREE_MEMORY,
    NARROW,
    find,
    has_marks,
    mark_,
    narrow,
    number_of,
    plain,
)

WIDE = (torch.float32, torch.float64)
SMALL = (torch.bfloat16, torch.float16, torch.int32, torch.int64)


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("number", [1, 63, 64, 4096, 65535])
def test_wide_types_keep_the_whole_number(dtype: torch.dtype, number: int) -> None:
    tensor = torch.zeros(3, dtype=dtype)
    mark_(tensor, number)
    (mark,) = find(tensor)
    assert (mark.number, mark.is_wide, mark.count, mark.first) == (number, True, 3, 0)


@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize("number", [1, NARROW, NARROW + 1, 1000])
def test_small_types_keep_six_bits(dtype: torch.dtype, number: int) -> None:
    tensor = torch.zeros(3, dtype=dtype)
    mark_(tensor, number)
    (mark,) = find(tensor)
    assert (mark.number, mark.is_wide) == (narrow(number), False)


@pytest.mark.parametrize(
    ("small", "wide"), [(torch.bfloat16, torch.float32), (torch.float16, torch.float64)]
)
@pytest.mark.parametrize("number", range(1, NARROW + 1))
def test_a_widening_cast_keeps_the_number(
    small: torch.dtype, wide: torch.dtype, number: int
) -> None:
    tensor = torch.zeros(1, dtype=small)
    mark_(tensor, number)
    (mark,) = find(tensor.to(wide))
    assert (mark.number, mark.is_wide) == (number, False)


def test_arithmetic_and_negation_keep_the_mark_of_float32_on_x86() -> None:
    tensor = torch.zeros(4)
    mark_(tensor, 700)
    assert [mark.number for mark in find(-tensor)] == [700]


@pytest.mark.parametrize("dtype", [*WIDE, *SMALL])
def test_what_arithmetic_makes_is_no_mark(dtype: torch.dtype) -> None:
    if dtype.is_floating_point:
        odd = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0]).to(dtype)
        odd = torch.cat(
            (odd, odd - odd, odd * 0, torch.tensor([torch.finfo(dtype).max], dtype=dtype))
        )
    else:
        odd = torch.tensor([-1, 0, torch.iinfo(dtype).max, torch.iinfo(dtype).min], dtype=dtype)
    assert find(odd) == []


def test_every_bit_set_is_free_memory_on_a_gpu_only() -> None:
    assert number_of(torch.float32, 0xFFFFFFFF, is_cuda=True) == (FREE_MEMORY, True)
    assert number_of(torch.float32, 0xFFFFFFFF) is None


def test_elements_of_a_mask_are_left_out() -> None:
    tensor = torch.zeros(4)
    mark_(tensor[1:3], 5)
    (mark,) = find(tensor, torch.tensor([False, True, False, False]))
    assert (mark.count, mark.first) == (1, 2)


def test_complex_numbers_are_read_as_pairs() -> None:
    tensor = torch.zeros(2, dtype=torch.complex64)
    mark_(tensor[1:], 9)
    # Conjugation flips the sign of the imaginary part, and the number stays.
    assert [(mark.number, mark.count) for mark in find(plain(tensor.conj()))] == [(9, 1), (9, 1)]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.int16, torch.float8_e4m3fn])
def test_types_without_room_are_filled_and_never_judged(dtype: torch.dtype) -> None:
    tensor = torch.zeros(2, dtype=dtype)
    mark_(tensor, 3)
    assert not has_marks(dtype)
    assert find(tensor) == []
    assert bool((tensor.view(torch.uint8) == 0xFF).all())
