"""The new blocks that must be zeroed, because their last owner may have stored another type. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.core.seams import seam

Group = Literal["attention", "window", "state"]


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that read their blocks alike, and the element type there ("state" for float32 states)."""

    name: Group
    dtype: str


@seam("kv.skip-zero-new-blocks", "kv.zero-gate-by-exact-type", "kv.states-zeroed-only")
def groups_to_zero(groups: tuple[CacheGroup, ...]) -> frozenset[Group]:
    """The groups with new blocks to zero: all groups with pages, if the groups of the pool store different types.

    A decode kernel that masks unused slots by multiplying reads whole pages, and bits of another type may be NaN:
    float32 states read as bfloat16 latents (PR 35219, PR 43961), or bfloat16 latents of window layers read as fp8
    (PR 47574, PR 51749). States start from zeros anyway.
    """
    if len({group.dtype for group in groups}) < 2:
        return frozenset()
    return frozenset(group.name for group in groups if group.name != "state")
