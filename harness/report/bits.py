"""The meaning of a finding's bits: the sentinel of a site, a canonical NaN, a number. By dtype name, without torch."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from harness.core.catalog import SITES
from harness.core.sites import OUT_OF_RANGE, QUIET_BITS, TAG_MASK, Site

_TYPED = re.compile(r"\b0x([0-9a-f]{1,16}) ((?:b?float|u?int|bool)\w*)")
_SITE_OF_TAG = {site.tag: site for site in SITES}


@dataclass(frozen=True, slots=True)
class Layout:
    """The fields of a float type. `has_inf`: an exponent of all ones with mantissa 0 is infinite."""

    exponent: int
    mantissa: int
    has_inf: bool = True

    @property
    def size(self) -> int:
        return 1 + self.exponent + self.mantissa


LAYOUTS = {
    "float64": Layout(11, 52),
    "float32": Layout(8, 23),
    "float16": Layout(5, 10),
    "bfloat16": Layout(8, 7),
    "float8_e5m2": Layout(5, 2),
    "float8_e4m3fn": Layout(4, 3, has_inf=False),
}
FULL_NAN = {"float32": 0x7FFFFFFF, "bfloat16": 0x7FFF, "float16": 0x7FFF}
"""The canonical NaN of NVIDIA's arithmetic (measured on an H200)."""

KEPT = "Copied, or kept by arithmetic that keeps the payload of a NaN (x86), from uninitialised memory:"


@dataclass(frozen=True, slots=True)
class Meaning:
    """Bits in hex with their fields, what they are in a few words, and what follows from that."""

    bits: str
    dtype: str
    kind: str
    """sentinel (verbatim), computed (a NaN that arithmetic made), other (a NaN of unknown origin), infinite, number."""
    title: str
    text: str
    fields: tuple[tuple[str, str], ...] = ()


def explain(text: str | None) -> tuple[Meaning, ...]:
    """The meaning of each typed pattern in a finding's bits, such as ``0x7fd50006 float32 sentinel of kv.tail``.

    A pattern without a dtype, such as an address, is left out.
    """
    return tuple(_meaning(found[1], found[2]) for found in _TYPED.finditer(text or ""))


def _meaning(digits: str, dtype: str) -> Meaning:
    bits, size, layout = int(digits, 16), 4 * len(digits), LAYOUTS.get(dtype)
    if layout and layout.size == size:
        return Meaning(f"0x{digits}", dtype, *_of_float(bits, dtype, layout), _fields(bits, layout))
    return Meaning(f"0x{digits}", dtype, *_of_integer(bits, size, dtype))


def _of_float(bits: int, dtype: str, layout: Layout) -> tuple[str, str, str]:
    sign = 1 << (layout.size - 1)
    magnitude = bits & ~sign
    infinite = ((1 << layout.exponent) - 1) << layout.mantissa
    if site := _site(magnitude, dtype):
        if bits & sign:
            title = f"sentinel of {site.name}, its sign turned"
            return "computed", title, f"Arithmetic negated the poison of this site: {site.summary}."
        return "sentinel", f"sentinel of {site.name}", f"{KEPT} {site.summary}."
    if dtype not in QUIET_BITS and bits == (1 << layout.size) - 1:
        text = f"{dtype} has no room for a site's tag in its NaN. All ones is what the poison writes there."
        return "sentinel", "untagged sentinel", text
    if magnitude > infinite if layout.has_inf else magnitude == sign - 1:
        return _of_nan(bits, dtype, layout)
    if layout.has_inf and magnitude == infinite:
        word = "-Inf" if bits & sign else "+Inf"
        return "infinite", word, "Infinite: an overflow, a division by 0, or poison of the pattern inf."
    if magnitude == (infinite if layout.has_inf else sign - 1) - 1:
        return "number", f"{_value(bits, layout):.6g}", "The largest finite value, as the pattern max writes."
    return "number", f"{_value(bits, layout):.6g}", "A finite number: no bit pattern of the poison."


def _of_nan(bits: int, dtype: str, layout: Layout) -> tuple[str, str, str]:
    sign = 1 << (layout.size - 1)
    quiet = ((1 << (layout.exponent + 1)) - 1) << (layout.mantissa - 1)
    if dtype not in QUIET_BITS:
        short = dtype.removeprefix("float8_").removesuffix("fn")
        return "computed", f"{short} NaN", "Computed or converted. A NaN of 8 bits has no room for a tag."
    if bits == (1 << layout.size) - 1:
        if dtype != "bfloat16":
            return "sentinel", "untagged sentinel", f"{KEPT} memory whose type was not known when it was poisoned."
        text = "The untagged sentinel, or what torch's conversion to bfloat16 on a CPU makes of any NaN."
        return "other", "NaN, all ones", text
    if bits == FULL_NAN.get(dtype):
        text = "What NVIDIA's arithmetic makes of any NaN: computed from poison or from 0/0, not copied."
        return "computed", "canonical NaN of CUDA", text
    if (site := _widened(bits, dtype)) is not None:
        text = f"Read as 16 bits and converted to float32, which keeps the tag: {site.summary}."
        return "computed", f"sentinel of {site.name}, widened", text
    if bits == quiet:
        text = "What a conversion or torch.nan gives: computed from poison or from 0/0, not copied; the tag is lost."
        return "computed", "canonical NaN", text
    if bits == quiet | sign:
        text = "What x86 gives for 0/0 or Inf - Inf, and CUDA in float64: made by arithmetic, not copied."
        return "computed", "canonical NaN, negative", text
    payload = bits & ((1 << (layout.mantissa - 1)) - 1)
    return "other", f"NaN with payload 0x{payload:x}", "No site's tag: not one of the poison's own patterns."


def _of_integer(bits: int, size: int, dtype: str) -> tuple[str, str, str]:
    is_signed = not dtype.startswith(("uint", "bool"))
    value = bits - (1 << size) if is_signed and bits >> (size - 1) else bits
    if bits == (1 << size) - 1:
        return "sentinel", "all ones", "The untagged sentinel: NaN in every float type, -1 as an integer."
    if OUT_OF_RANGE in (value, value & 0xFFFFFFFF):
        return "sentinel", "out-of-range index", "The index of strict mode: a read through it faults."
    if dtype.startswith(("int", "uint", "bool")):
        return "number", str(value), f"The integer {value}; if it is an index, perhaps the poison's trap page."
    return "number", f"{size} bits", f"{dtype}: a type whose patterns are not known here."


def _site(magnitude: int, dtype: str) -> Site | None:
    quiet = QUIET_BITS.get(dtype)
    return _SITE_OF_TAG.get(magnitude & TAG_MASK) if quiet is not None and magnitude & ~TAG_MASK == quiet else None


def _widened(bits: int, dtype: str) -> Site | None:
    """The site of a 16-bit sentinel that was converted to float32, or None."""
    if dtype != "float32" or bits & 0x1FFF:
        return None
    half = bits >> 13 & 0x3FF | 0x7C00
    return (_site(bits >> 16, "bfloat16") if not bits & 0xFFFF else None) or _site(half, "float16")


def _value(bits: int, layout: Layout) -> float:
    """The number that the bits encode. It is exact: float64 holds all values of these types."""
    mantissa = bits & ((1 << layout.mantissa) - 1)
    exponent = bits >> layout.mantissa & ((1 << layout.exponent) - 1)
    bias = (1 << (layout.exponent - 1)) - 1
    if layout.size == 64:
        return float(struct.unpack("<d", bits.to_bytes(8, "little"))[0])
    fraction = mantissa / (1 << layout.mantissa) + (exponent > 0)
    return (-1.0 if bits >> (layout.size - 1) else 1.0) * fraction * 2.0 ** (max(exponent, 1) - bias)


def _fields(bits: int, layout: Layout) -> tuple[tuple[str, str], ...]:
    digits = f"{bits:0{layout.size}b}"
    return (
        ("sign", digits[0]),
        ("exponent", digits[1 : 1 + layout.exponent]),
        ("mantissa", digits[1 + layout.exponent :]),
    )
