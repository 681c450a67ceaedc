"""Which bytes a move copies: the groups, the part of a page, the length of a descriptor, and the
rank to read from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from harness.core.seams import seam
from harness.engine.moves.layout import NUM_SHARDS, Region
from harness.memory.moves.transport import Piece

Unit = Literal["block", "token"]


@seam("move.index-left-behind")
def moved_regions(regions: Iterable[Region]) -> list[Region]:
    """The regions that are moved: all. Index keys lie in a cache of their own (ROCm/ATOM#1807)."""
    return list(regions)


@seam("move.rows-for-blocks")
def page_bytes(region: Region) -> int:
    """The bytes of a block.

    A backend of MLA that counts pages of one row gives a 16th of it (ROCm/ATOM#1807).
    """
    return region.page_bytes


@seam("move.fused-read-as-planes")
def used_bytes(region: Region, used: int) -> list[tuple[int, int]]:
    """The bytes of the first `used` tokens of a page, where K and V of a token are neighbors
    (LMCache/LMCache#4463).
    """
    return [(0, used * region.token_bytes)]


@seam("move.page-length-per-kernel-block")
def descriptor_bytes(num_bytes: int, splits: int) -> int:
    """The bytes of one descriptor, if a block of `num_bytes` has one for each of its kernel blocks
    (vllm-project/vllm#54272).
    """
    return num_bytes // splits


@seam("move.length-of-shared-base")
def lengths(regions: list[Region]) -> list[int]:
    """The bytes that are sent of a block of each region.

    Two regions may begin at one address (vllm-project/vllm#57661).
    """
    return [page_bytes(region) for region in regions]


@seam("move.shards-of-rank-zero")
def source_rank(region: Region, shard: int, rank: int, num_ranks: int) -> int:
    """The rank of `num_ranks` that has a shard.

    Any rank has what is replicated, for this group (vllm-project/vllm#49499).
    """
    return shard * num_ranks // NUM_SHARDS if region.is_sharded else rank % num_ranks


def page_copies(
    target: Region, source: Region, rows: tuple[int, int], length: int, used: int, unit: Unit
) -> Iterator[Piece]:
    """The copies of one block, from row `rows[0]` of `source` to row `rows[1]` of `target`, with
    equal shards.

    `used` is how many of its tokens are computed, `length` the bytes of the whole block.
    """
    start = source.start(rows[0])
    end = target.start(rows[1])
    if unit == "token" and used < source.tokens:
        for first, last in used_bytes(source, used):
            yield target.piece(source, start + first, end + first, last - first)
        return
    each = descriptor_bytes(length, source.splits)
    for number in range(source.splits):
        offset = number * (length // source.splits)
        yield target.piece(source, start + offset, end + offset, each)


def shard_copies(
    target: Region, source: Region, rows: tuple[int, int], shards: list[int], used: int
) -> Iterator[Piece]:
    """The copies of some shards of one block: ranks of the two engines have other numbers of
    them.
    """
    num_tokens = min(used, source.tokens)
    for shard in shards:
        # A wrong rank does not have the shard. It gives what lies at that place, as a copy by
        # offsets would (vllm-project/vllm#49499).
        local = source.shards.index(shard) if shard in source.shards else shard % len(source.shards)
        ends = ((source, rows[0], local), (target, rows[1], target.shards.index(shard)))
        views = [
            region.buffer.data[row, : region.page_bytes].view(
                -1, len(region.shards), region.record
            )[:num_tokens, at]
            for region, row, at in ends
        ]
        starts = [
            [
                region.start(row) + token * region.token_bytes + at * region.record
                for token in range(num_tokens)
            ]
            for region, row, at in ends
        ]
        reads, writes = (
            tuple(
                span for start in each for span in region.buffer.spans(start, start + region.record)
            )
            for each, (region, _, _) in zip(starts, ends, strict=True)
        )
        yield Piece(views[0], views[1], reads, writes)
