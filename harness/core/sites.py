"""The one table of sites, the kinds of memory that the poison can fill, and the bits of its
sentinels. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.files import rows_beside

QUIET_BITS = {
    "bfloat16": 0x7FC0,
    "float16": 0x7F40,
    "float32": 0x7FD50000,
    "float64": 0x7FF8_5EED_0000_0000,
}
"""The sentinel without its tag. Other types have no room for a tag: their sentinel is all ones."""

TAG_MASK = 0x3F

OUT_OF_RANGE = 2_147_480_000
"""The index of strict mode: no pool has so many pages, so a read through it must fault (after
FlashMLA's tests).
"""


@dataclass(frozen=True, slots=True)
class Site:
    """A kind of memory that a kernel or an engine could read before it is written.

    `tag` (1..60) is the number in the payload of a NaN sentinel. Stored results contain it, so a
    tag is never reused. `indices` are what a bounds check calls the indices that are read from it.
    """

    name: str
    tag: int
    summary: str
    indices: tuple[str, ...] = ()


SITES = tuple(
    Site(name, row["tag"], row["memory"], tuple(row.get("indices", ())))
    for name, row in rows_beside(__file__).items()
)
"""The entries of `sites.yaml`, in its order."""
