"""The repaired interpreter treats narrow floats as hardware does.

Run by test_triton.py under TRITON_INTERPRET=1.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from harness.memory.triton_interpreter import prepare

assert prepare(), "set TRITON_INTERPRET=1"

SPECIAL = [
    float("nan"),
    float("inf"),
    -float("inf"),
    0.0,
    -0.0,
    1e-40,
    3.4e38,
    449.0,
    -500.0,
    2.0**-9,
    2.0**-10,
    448.0,
]


@triton.jit
def _convert(source, target, N: tl.constexpr):
    index = tl.arange(0, N)
    tl.store(target + index, tl.load(source + index).to(target.dtype.element_ty))


@triton.jit
def _dot(a, b, c, N: tl.constexpr):
    row, column = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    at = row * N + column
    tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at)))


@triton.jit
def _double(source, target, N: tl.constexpr):
    index = tl.arange(0, N)
    value = tl.load(source + index)
    tl.store(target + index, value + value)


@triton.jit
def _far(target, stride: tl.int64, plain):
    index = tl.load(target).to(tl.int32)
    tl.store(target + 1, index * stride)
    tl.store(target + 2, index * plain)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("wide", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_each_of_the_256_codes_of_a_float8_widens_as_in_torch(
    dtype: torch.dtype, wide: torch.dtype
) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(dtype)
    widened = torch.zeros(256, dtype=wide)
    _convert[(1,)](codes, widened, 256)
    expected = codes.to(wide)
    nan = expected.isnan()
    assert int(nan.sum()) == (2 if dtype == torch.float8_e4m3fn else 6)
    assert torch.equal(widened.isnan(), nan)
    assert torch.equal(_bytes(widened[~nan]), _bytes(expected[~nan]))


def test_each_of_the_65536_codes_of_bfloat16_widens_bit_for_bit() -> None:
    codes = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    widened = torch.zeros(65536)
    _convert[(1,)](codes, widened, 65536)
    assert torch.equal(widened.view(torch.int32), codes.float().view(torch.int32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("spread", [1e-3, 1.0, 150.0])
def test_rounding_is_to_nearest_even_bit_for_bit_as_in_torch(
    dtype: torch.dtype, spread: float
) -> None:
    values = torch.randn(4096, generator=torch.Generator().manual_seed(3)) * spread
    # Halfway cases: the upper 16 bits of a bfloat16 with exactly half an ulp below.
    halves = (values[:1024].view(torch.int32) & -65536 | 0x8000).view(torch.float32)
    values[1024:2048] = halves
    values = values.clamp(-448.0, 448.0)
    rounded = torch.zeros(4096, dtype=dtype)
    _convert[(1,)](values, rounded, 4096)
    assert torch.equal(_bytes(rounded), _bytes(values.to(dtype)))


def test_special_values_survive_narrowing_to_bfloat16() -> None:
    values = torch.tensor(SPECIAL + [1.0] * 4)
    rounded = torch.zeros(16, dtype=torch.bfloat16)
    _convert[(1,)](values, rounded, 16)
    assert torch.equal(_bytes(rounded), _bytes(values.bfloat16()))


def test_e4m3_keeps_nan_and_saturates_what_is_too_large() -> None:
    values = torch.tensor(SPECIAL + [1.0] * 4)
    rounded = torch.zeros(16, dtype=torch.float8_e4m3fn)
    _convert[(1,)](values, rounded, 16)
    assert torch.equal(_bytes(rounded), _bytes(values.clamp(-448.0, 448.0).to(torch.float8_e4m3fn)))
    assert rounded.float().isnan().tolist() == [True] + [False] * 15


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn], ids=str)
def test_a_dot_of_narrow_types_is_the_product_of_their_values(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randn(16, 16, generator=generator).to(dtype) for _ in range(2))
    product = torch.zeros(16, 16)
    _dot[(1,)](a, b, product, 16)
    expected = a.float().double() @ b.float().double()
    assert float((product - expected).abs().max()) < 1e-5


def test_a_nan_in_a_float8_operand_poisons_its_row_of_a_dot() -> None:
    a = torch.ones(16, 16).to(torch.float8_e4m3fn)
    a.view(torch.uint8)[3, 7] = 0x7F
    product = torch.zeros(16, 16)
    _dot[(1,)](a, torch.ones(16, 16).to(torch.float8_e4m3fn), product, 16)
    assert product.isnan().any(dim=1).nonzero().flatten().tolist() == [3]
    assert product[3].isnan().all()


def test_other_arithmetic_on_float8_is_refused_not_wrong() -> None:
    values = torch.ones(16).to(torch.float8_e4m3fn)
    with pytest.raises(Exception, match="not modelled by the interpreter"):
        _double[(1,)](values, torch.zeros(16, dtype=values.dtype), 16)


@triton.jit
def _arithmetic(a, b, sums, products, larger, negated, N: tl.constexpr):
    index = tl.arange(0, N)
    x, y = tl.load(a + index), tl.load(b + index)
    tl.store(sums + index, x + y)
    tl.store(products + index, x * y)
    tl.store(larger + index, (x > y).to(tl.int8))
    tl.store(negated + index, -tl.maximum(x, y))


def test_arithmetic_on_bfloat16_has_the_bits_of_torch() -> None:
    values = torch.Generator().manual_seed(0)
    a, b = (torch.randn(4096, generator=values).mul(3).to(torch.bfloat16) for _ in range(2))
    sums, products, negated = (torch.empty_like(a) for _ in range(3))
    larger = torch.empty(4096, dtype=torch.int8)
    _arithmetic[(1,)](a, b, sums, products, larger, negated, 4096)
    for found, expected in ((sums, a + b), (products, a * b), (negated, -torch.maximum(a, b))):
        assert torch.equal(_bytes(found), _bytes(expected))
    assert torch.equal(larger.bool(), a > b)


@triton.jit
def _cast(source, target, N: tl.constexpr):
    index = tl.arange(0, N)
    tl.store(target + index, tl.load(source + index).to(target.dtype.element_ty))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int8, torch.float64], ids=str)
def test_bfloat16_and_other_types_are_converted_by_value(dtype: torch.dtype) -> None:
    values = torch.arange(-64, 64).to(dtype)
    narrow, again = torch.empty(128, dtype=torch.bfloat16), torch.empty(128, dtype=dtype)
    _cast[(1,)](values, narrow, 128)
    _cast[(1,)](narrow, again, 128)
    assert torch.equal(narrow, values.to(torch.bfloat16)) and torch.equal(again, values)


def test_a_stride_that_is_annotated_as_int64_has_64_bits() -> None:
    """Else the product of an index and a stride overflows in a pool of 2**31 elements."""
    target = torch.tensor([9, 0, 0])
    _far[(1,)](target, 2**29, 2**29)
    assert target.tolist() == [9, 9 * 2**29, 9 * 2**29 - 2**32]
