"""The bits of the poison in each dtype, by name. No torch here."""

from __future__ import annotations

QUIET_BITS = {"bfloat16": 0x7FC0, "float16": 0x7F40, "float32": 0x7FD50000, "float64": 0x7FF8_5EED_0000_0000}
"""The sentinel without its tag. Other types have no room for a tag: their sentinel is all ones."""

TAG_MASK = 0x3F

OUT_OF_RANGE = 2_147_480_000
"""The index of strict mode: no pool has so many pages, so a read through it must fault (after FlashMLA's tests)."""
