"""Sentinels can be told apart: every site in every type that has room for a tag."""

from __future__ import annotations

import pytest
import torch
from torch_poison.patterns import (
    OUT_OF_RANGE,
    UNTAGGED,
    bits_view,
    hex_bits,
    sentinel_bits,
    site_of_bits,
)

SITES = ["workspace", "output", "cache.tail", "expert.ids", "last"]
TAGGED = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
UNTAGGED_FLOATS = [torch.float8_e4m3fn, torch.float8_e5m2]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]


def filled(dtype: torch.dtype, site: str) -> torch.Tensor:
    tensor = torch.zeros(3, dtype=dtype)
    bits_view(tensor).fill_(sentinel_bits(dtype, site))
    return tensor


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("dtype", TAGGED)
def test_a_sentinel_is_a_quiet_nan_that_names_its_site(dtype: torch.dtype, site: str) -> None:
    tensor = filled(dtype, site)
    assert bool(tensor.isnan().all())
    assert site_of_bits(dtype, int(bits_view(tensor)[0])) == site
    assert hex_bits(tensor, (0,)).endswith(f"sentinel of {site}")


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("dtype", TAGGED)
def test_a_sentinel_survives_a_copy_bit_by_bit(dtype: torch.dtype, site: str) -> None:
    copy = torch.empty(3, dtype=dtype).copy_(filled(dtype, site))
    assert site_of_bits(dtype, int(bits_view(copy)[1])) == site


@pytest.mark.parametrize("dtype", UNTAGGED_FLOATS)
def test_an_fp8_sentinel_is_nan_without_a_tag(dtype: torch.dtype) -> None:
    tensor = filled(dtype, "cache.tail")
    assert bool(tensor.float().isnan().all())
    assert site_of_bits(dtype, int(bits_view(tensor)[0])) == UNTAGGED


@pytest.mark.parametrize("dtype", INTEGERS)
def test_a_sentinel_of_integers_is_minus_one(dtype: torch.dtype) -> None:
    tensor = filled(dtype, "expert.ids")
    assert int(tensor[0]) in (-1, 255)
    assert site_of_bits(dtype, int(bits_view(tensor)[0])) == UNTAGGED


def test_sentinels_of_all_sites_and_types_are_different_from_each_other() -> None:
    for dtype in TAGGED:
        assert len({sentinel_bits(dtype, site) for site in SITES}) == len(SITES)


@pytest.mark.parametrize("dtype", TAGGED)
def test_ordinary_values_and_canonical_nans_are_no_sentinel(dtype: torch.dtype) -> None:
    values = torch.tensor([0.0, -0.0, 1.0, float("inf"), float("nan")], dtype=dtype)
    assert [site_of_bits(dtype, int(bits)) for bits in bits_view(values)] == [None] * 5


def test_arithmetic_in_float32_keeps_the_payload_and_rounding_to_bfloat16_loses_it() -> None:
    tensor = filled(torch.float32, "cache.tail")
    assert site_of_bits(torch.float32, int(bits_view(tensor + 1)[0])) == "cache.tail"
    narrow = tensor.to(torch.bfloat16)
    assert bool(narrow.isnan().all())
    assert site_of_bits(torch.bfloat16, int(bits_view(narrow)[0])) != "cache.tail"


def test_the_index_of_strict_mode_is_an_int32_that_no_pool_has() -> None:
    assert 2**31 - 10_000 < OUT_OF_RANGE < 2**31
