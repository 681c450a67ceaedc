"""The one-pass look at a CUDA tensor finds what is not finite, and its scan is that of the same
bits on a CPU.
"""

from __future__ import annotations

import pytest
import torch
from torch_poison.cuda_kernels import any_not_finite
from torch_poison.patterns import EXPONENT, bits_view, sentinel_bits
from torch_poison.scan import scan

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn]


@pytest.mark.parametrize("size", [3, 10_001, 1 << 20])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_single_bad_element_is_seen_wherever_it_is(dtype: torch.dtype, size: int) -> None:
    bits = bits_view(torch.randn(size, device="cuda").to(dtype))
    assert not any_not_finite(bits, EXPONENT[dtype])
    for place in (0, size // 2, size - 1):
        bad = bits.clone()
        bad[place] = EXPONENT[dtype]
        assert any_not_finite(bad, EXPONENT[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_scan_is_that_of_a_cpu(dtype: torch.dtype) -> None:
    values = torch.randn(1 << 20).to(dtype)
    assert scan(values.cuda()) == scan(values)
    bits_view(values)[500:900] = sentinel_bits(dtype, "kv.tail")
    values[77] = float("nan")
    if dtype != torch.float8_e4m3fn:
        values[9_000] = float("inf")
    assert scan(values.cuda()) == scan(values)


def test_arithmetic_makes_a_canonical_nan_of_a_sentinel() -> None:
    values = torch.zeros(1000, device="cuda")
    bits_view(values).fill_(sentinel_bits(torch.float32, "output"))
    assert list(scan(values).sentinels) == ["output"]
    found = scan(values + 1).canonical_nan
    assert found is not None and found.count == 1000
