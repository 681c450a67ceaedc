"""Which new blocks must be zeroed before use, because their last owner may have left bits of another type. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.core.seams import seam

Group = Literal["attention", "window", "state"]


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that read their blocks alike: what they keep there, and the element type of that ("state": float32)."""

    name: Group
    dtype: str


@seam("kv.skip-zero-new-blocks", "kv.zero-gate-by-exact-type", "kv.states-zeroed-only")
def groups_to_zero(groups: tuple[CacheGroup, ...]) -> frozenset[Group]:
    """The groups whose new blocks are zeroed: those with pages, when another group of the pool stores another type.

    A decode kernel that masks unused slots by multiplying reads whole pages, and bits of another type may be NaN:
    float32 states read as bfloat16 latents (PR 35219, PR 43961), but also bfloat16 latents of
    sliding-window layers read as fp8 ones (PR 47574, PR 51749). So the rule asks for types, not for kinds
    of layer. A layer with a state starts from zeros by itself; a pool of one type holds only finite latents.
    """
    if len({group.dtype for group in groups}) < 2:
        return frozenset()
    return frozenset(group.name for group in groups if group.name != "state")
