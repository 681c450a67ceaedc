"""Faults of moves: bytes that are copied too early, too late, too few, or from another owner."""

from __future__ import annotations

from collections.abc import Iterable

from harness.engine.moves.layout import Region
from harness.memory.moves.streams import Event
from harness.memory.moves.transport import Status


def all_but_the_index(regions: Iterable[Region]) -> list[Region]:
    """Move the pages and leave the index keys, which lie in another cache (ROCm/ATOM#1807)."""
    return [region for region in regions if region.group != "index"]


def one_row(region: Region) -> int:
    """Count pages of one row, as this backend does, for blocks of several tokens
    (ROCm/ATOM#1807).
    """
    return region.token_bytes


def planes(region: Region, used: int) -> list[tuple[int, int]]:
    """Read the cache as a plane of K and a plane of V, each [token, record / 2]
    (LMCache/LMCache#4463).
    """
    half = region.page_bytes // 2
    used_half = used * region.token_bytes // 2
    return [(0, used_half), (half, half + used_half)]


def length_of_first(regions: list[Region]) -> list[int]:
    """Register one region for each base address, with the length of the first
    (vllm-project/vllm#57661).
    """
    first: dict[str, int] = {}
    return [first.setdefault(region.buffer.name, region.page_bytes) for region in regions]


def ended(status: Status) -> bool:
    """Take a transfer that failed for one that is finished (vllm-project/vllm#52234)."""
    return status != "busy"


def host_row(region: Region, device: int, host: int) -> int:
    """Use the ids of host pages for the index keys on the device (sgl-project/sglang#31901)."""
    rows = region.buffer.data.shape[0]
    return host % rows if region.group == "index" else device


def pages_alone(ready: dict[tuple[int, str], Event]) -> dict[tuple[int, str], Event]:
    """Wait for the pages of a layer and not for its index keys (sgl-project/sglang#22811)."""
    return {key: event for key, event in ready.items() if key[1] != "index"}
