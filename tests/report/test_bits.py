"""The meaning of bits that a report prints agrees with the poison that wrote them, and with torch on numbers."""

from __future__ import annotations

import math

import pytest
import torch

from harness.core.catalog import SITES
from harness.memory.poison.patterns import OUT_OF_RANGE, Poison, bits_view, hex_bits, sentinel_bits
from harness.report.bits import LAYOUTS, explain

FLOATS = {name: getattr(torch, name) for name in LAYOUTS}


def printed(value: torch.Tensor) -> str:
    """The bits of a tensor of one element, as a finding prints them."""
    return hex_bits(value.reshape(1), (0,))


@pytest.mark.parametrize("site", list(SITES), ids=lambda site: site.name)
@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16"])
def test_a_sentinel_is_told_with_its_site_and_that_sites_meaning(name: str, site) -> None:
    tensor = torch.zeros(1, dtype=FLOATS[name])
    bits_view(tensor).fill_(sentinel_bits(FLOATS[name], site.name))
    (meaning,) = explain(printed(tensor))
    assert (meaning.kind, meaning.title) == ("sentinel", f"sentinel of {site.name}")
    assert site.summary in meaning.text and meaning.dtype == name


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_the_poison_writes_is_told_from_what_arithmetic_makes(name: str) -> None:
    dtype = FLOATS[name]
    written = Poison("nan", frozenset(["output"])).fill_(torch.zeros(1, dtype=dtype), "output")
    assert explain(printed(written))[0].kind == "sentinel"
    made = torch.tensor([math.nan], dtype=torch.float64).to(dtype)
    (meaning,) = explain(printed(made))
    # torch's conversion to bfloat16 makes all ones of many elements, and the canonical NaN of one.
    assert meaning.kind in (("computed", "other") if name == "bfloat16" else ("computed", "sentinel")), meaning
    assert "NaN" in meaning.title or meaning.title == "untagged sentinel"


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_finite_number_is_read_as_torch_reads_it(name: str) -> None:
    dtype = FLOATS[name]
    count = 1 << 8 if dtype.itemsize == 1 else 600
    drawn = torch.randint(0, 1 << 8, (count, dtype.itemsize), dtype=torch.uint8, generator=torch.Generator())
    values = (torch.arange(256, dtype=torch.uint8) if dtype.itemsize == 1 else drawn.reshape(-1)).view(dtype)
    seen = 0
    for value in values:
        (meaning,) = explain(printed(value))
        number = float(value.double())
        if math.isfinite(number):
            assert meaning.kind == "number" and float(meaning.title) == pytest.approx(number, rel=1e-5), meaning
            seen += 1
        elif math.isinf(number):
            assert meaning.kind == "infinite" and meaning.title[0] == ("+" if number > 0 else "-")
        else:
            assert meaning.kind in ("computed", "sentinel", "other"), meaning
    assert seen > count // 2
    assert explain(printed(torch.tensor(torch.finfo(dtype).max, dtype=dtype)))[0].text.startswith("The largest finite")


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_fields_are_the_bits_in_their_order(name: str) -> None:
    value = torch.tensor(-1.5).to(FLOATS[name])
    (meaning,) = explain(printed(value))
    digits = "".join(part for _, part in meaning.fields)
    assert int(digits, 2) == int(meaning.bits, 16) and len(digits) == 8 * value.element_size()
    assert [field for field, _ in meaning.fields] == ["sign", "exponent", "mantissa"]


@pytest.mark.parametrize(
    ("bits", "kind", "title"),
    [
        ("0x7fffffff float32", "computed", "canonical NaN of CUDA"),
        ("0x7fff bfloat16", "computed", "canonical NaN of CUDA"),
        ("0x7fc00000 float32", "computed", "canonical NaN"),
        ("0xffc00000 float32", "computed", "canonical NaN, negative"),
        ("0xffd50006 float32", "computed", "sentinel of kv.tail, its sign turned"),
        ("0x7fc80000 float32", "computed", "sentinel of kv.new, widened"),
        ("0xffff bfloat16", "other", "NaN, all ones"),
        ("0x7fc12345 float32", "other", "NaN with payload 0x12345"),
        ("0x7f float8_e4m3fn", "computed", "e4m3 NaN"),
        ("0xff float8_e4m3fn", "sentinel", "untagged sentinel"),
        ("0xffffffff int32", "sentinel", "all ones"),
        ("0x8f uint8", "number", "143"),
        (f"0x{OUT_OF_RANGE:08x} int32", "sentinel", "out-of-range index"),
        (f"0x{OUT_OF_RANGE | OUT_OF_RANGE << 32:016x} int64", "sentinel", "out-of-range index"),
    ],
)  # fmt: skip
def test_well_known_patterns_have_their_names(bits: str, kind: str, title: str) -> None:
    (meaning,) = explain(bits)
    assert (meaning.kind, meaning.title) == (kind, title)


def test_a_widened_sentinel_is_what_torch_makes_of_a_16_bit_one() -> None:
    half = torch.zeros(1, dtype=torch.bfloat16)
    bits_view(half).fill_(sentinel_bits(torch.bfloat16, "kv.new"))
    assert explain(printed(half.float()))[0].title == "sentinel of kv.new, widened"


def test_all_patterns_of_a_finding_are_told_and_addresses_are_not_taken_for_any() -> None:
    assert [m.title for m in explain("0x7fc00000 float32 / 0x40000000 float32")] == ["canonical NaN", "2"]
    assert explain("captured 0x55c37b3a3180, updated 0x55c37abac800") == ()
    assert explain("0x7fc00001") == explain("") == explain(None) == ()
