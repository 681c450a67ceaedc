from __future__ import annotations

import pytest
import torch
from torch_poison.patterns import OUT_OF_RANGE, UNTAGGED, Poison, bits_view, sentinel_bits
from torch_poison.scan import origin_of_bits, scan

SITES = ["workspace", "output", "cache.tail", "expert.ids", "last"]
FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def poisoned(tensor: torch.Tensor, site: str) -> torch.Tensor:
    return Poison("nan", frozenset({site})).fill_(tensor, site)


@pytest.mark.parametrize(
    "dtype", [*FLOATS, torch.float8_e4m3fn, torch.float8_e5m2, torch.int32, torch.int64]
)
def test_ordinary_values_are_counted_and_show_nothing(dtype):
    found = scan(torch.arange(12).reshape(3, 4).to(dtype))
    assert found.looked_at == 12
    assert not found.sentinels
    assert found.canonical_nan is found.other_nan is found.inf is None


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("site", SITES)
def test_a_sentinel_names_its_site_in_every_float_type(dtype, site):
    tensor = torch.zeros(4, 6, dtype=dtype)
    poisoned(tensor[2, 3:], site)
    found = scan(tensor)
    assert list(found.sentinels) == [site]
    hits = found.sentinels[site]
    assert (hits.count, hits.rows, hits.first) == (3, (2,), (2, 3))


@pytest.mark.parametrize(
    "dtype",
    [torch.float8_e4m3fn, torch.float8_e5m2, torch.int32, torch.int64, torch.uint8, torch.bool],
)
def test_the_all_ones_pattern_is_untagged(dtype):
    tensor = torch.zeros(5, 2, dtype=torch.uint8).to(dtype)
    bits_view(tensor)[4, 1] = 0xFF if dtype.itemsize == 1 else -1
    assert scan(tensor).sentinels[UNTAGGED].first == (4, 1)


def test_an_impossible_index_is_untagged():
    assert scan(torch.tensor([3, OUT_OF_RANGE], dtype=torch.int32)).sentinels[UNTAGGED].first == (
        1,
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_nan_of_arithmetic_is_canonical_whatever_its_sign(dtype):
    nan = torch.full((2, 2), float("nan"), dtype=dtype)
    for tensor in (nan, -nan):
        found = scan(tensor)
        assert found.canonical_nan is not None and found.canonical_nan.count == 4
        assert not found.sentinels


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float8_e5m2])
def test_infinities_of_both_signs_are_one_thing(dtype):
    tensor = torch.tensor([1.0, float("inf"), float("-inf")]).to(dtype)
    found = scan(tensor)
    assert found.inf is not None and (found.inf.count, found.inf.rows) == (2, (1, 2))
    assert found.canonical_nan is found.other_nan is None


def test_a_nan_of_an_unknown_payload_is_another_nan():
    tensor = torch.zeros(3)
    bits_view(tensor)[1] = 0x7FC12345
    found = scan(tensor)
    assert found.other_nan is not None and found.other_nan.first == (1,)


def test_a_mask_of_rows_or_of_elements_limits_the_scan():
    tensor = poisoned(torch.zeros(3, 2), "output")
    assert scan(tensor, torch.tensor([True, False, True])).sentinels["output"].rows == (0, 2)
    elements = torch.zeros(3, 2, dtype=torch.bool)
    elements[1, 1] = True
    found = scan(tensor, elements)
    assert (found.looked_at, found.sentinels["output"].first) == (1, (1, 1))


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0)])
def test_an_empty_tensor_is_nothing_looked_at(shape):
    assert scan(torch.zeros(shape)).looked_at == 0


def test_a_strided_view_is_scanned_by_its_own_indices():
    tensor = torch.zeros(4, 8)
    poisoned(tensor[3, 6:7], "last")
    assert scan(tensor[:, ::2]).sentinels["last"].first == (3, 3)


@pytest.mark.parametrize("site", SITES)
def test_float32_arithmetic_on_this_machine_keeps_the_origin_of_a_nan(site):
    poison = poisoned(torch.empty(16), site)
    for computed in (poison + 1, poison * 0, -poison, poison.exp(), poison.double()):
        assert origin_of_bits(computed.dtype, int(bits_view(computed)[0])) == site


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_widening_cast_keeps_the_origin_of_a_nan(dtype):
    wide = poisoned(torch.empty(16, dtype=dtype), "cache.tail").float()
    assert origin_of_bits(torch.float32, int(bits_view(wide)[0])) == "cache.tail"


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float8_e4m3fn])
def test_ordinary_nans_have_no_origin(dtype):
    nan = torch.full((1,), float("nan")).to(dtype)
    assert origin_of_bits(dtype, int(bits_view(nan)[0])) is None


def test_no_widened_sentinel_is_taken_for_another_site():
    for site in SITES:
        narrow = torch.tensor([sentinel_bits(torch.bfloat16, site)], dtype=torch.int16).view(
            torch.bfloat16
        )
        assert origin_of_bits(torch.float32, int(bits_view(narrow.float())[0])) == site
