"""The one-pass census of a CUDA tensor agrees with the scan of the same bits on a CPU."""

from __future__ import annotations

import pytest
import torch

from harness.memory.poison.patterns import UNTAGGED, bits_view, sentinel_bits
from harness.memory.poison.scan import census, scan

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn]


@pytest.mark.parametrize("size", [3, 10_001, 1 << 20])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_clean_tensor_has_nothing(dtype: torch.dtype, size: int) -> None:
    found = census(torch.randn(size, device="cuda").to(dtype))
    assert (found.sentinels, found.canonical_nan, found.other_nan, found.inf) == ({}, None, None, None)


@pytest.mark.parametrize("size", [10_001, 1 << 20])
@pytest.mark.parametrize("dtype", DTYPES)
def test_counts_and_first_places_are_those_of_the_scan(dtype: torch.dtype, size: int) -> None:
    values = torch.randn(size).to(dtype)
    site = "kv.tail" if dtype.itemsize > 1 else UNTAGGED
    bits_view(values)[500:900] = sentinel_bits(dtype, "kv.tail") if dtype.itemsize > 1 else 0xFF
    values[77] = float("nan")
    if dtype != torch.float8_e4m3fn:
        values[9_000] = float("inf")
    found, expected = census(values.cuda()), scan(values)
    assert found.sentinels == {site: (400, 500)}
    assert {name: (hits.count, hits.first[0]) for name, hits in expected.sentinels.items()} == found.sentinels
    assert found.canonical_nan == (1, 77)
    assert found.inf == (None if dtype == torch.float8_e4m3fn else (1, 9_000))


def test_arithmetic_makes_a_canonical_nan_of_a_sentinel() -> None:
    values = torch.zeros(1000, device="cuda")
    bits_view(values).fill_(sentinel_bits(torch.float32, "output"))
    assert census(values).sentinels == {"output": (1000, 0)}
    assert census(values + 1).canonical_nan == (1000, 0)
