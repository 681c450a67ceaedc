"""The one table of sites, the kinds of memory that the poison can fill. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.files import rows_beside


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
