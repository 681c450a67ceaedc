"""Caches whose pages lie far apart: any size in address space, zeros everywhere, and offsets that need 64 bits."""

from __future__ import annotations

import pytest
import torch

from harness.core.errors import InputError
from harness.engine.faults.attention import offsets_in_32_bits
from harness.kernels.ops.large_cache import empty_cache
from harness.kernels.torch.decode import page_offsets

STRIDE = 2**29


def test_pages_lie_one_behind_the_other_unless_a_stride_is_given() -> None:
    assert empty_cache(3, 80, torch.bfloat16).stride() == (64 * 80, 80, 1)


def test_a_page_past_four_billion_elements_can_be_written_and_read() -> None:
    cache = empty_cache(10, 80, torch.float8_e4m3fn, STRIDE)
    assert cache.shape == (10, 64, 80) and cache.stride(0) == STRIDE
    cache.view(torch.uint8)[9] = 7
    assert int(cache.view(torch.uint8)[8].count_nonzero()) == 0
    assert bool((cache.view(torch.uint8)[9] == 7).all())


def test_a_stride_smaller_than_a_page_is_refused() -> None:
    with pytest.raises(InputError, match="a page has 5120 elements"):
        empty_cache(2, 80, torch.bfloat16, 5000)


def test_offsets_are_formed_in_64_bits_and_wrap_with_the_fault() -> None:
    blocks = torch.tensor([7, 8, 9], dtype=torch.int32)
    assert page_offsets(blocks, STRIDE).tolist() == [7 * STRIDE, 8 * STRIDE, 9 * STRIDE]
    assert offsets_in_32_bits(blocks, STRIDE).tolist() == [7 * STRIDE, 0, STRIDE]
