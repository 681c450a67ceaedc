"""The regions of a cache that are moved: the token and the shard to which each byte of a block
belongs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from harness.core.move_params import MoveParams
from harness.memory.moves.owners import GROUPS, MoveGroup, records, unsent
from harness.memory.moves.streams import Span
from harness.memory.moves.transport import Piece

NUM_SHARDS = 4
"""Shards of heads and states in the whole model; a rank has an equal part of them."""
PAD = 0xDB
PAD_BYTES = 32
_RECORDS = {"latent": 48, "heads": 32, "index": 20, "window": 48}
"""Bytes of a token, of one shard where there are shards.

Index keys are no multiple of a word, as upstream.
"""
TABLES: dict[MoveGroup, str] = dict.fromkeys(GROUPS, "pages") | {
    "window": "window",
    "state": "state",
}
"""The list of blocks of a request that a group reads."""
Tables = dict[str, list[int | None]]


@dataclass(slots=True)
class Buffer:
    """Memory [num_rows, stride] uint8 that one or two regions lie in.

    Behind each row's pages there is padding.
    """

    name: str
    data: Tensor

    @property
    def flat(self) -> Tensor:
        """All bytes in order."""
        return self.data.view(-1)

    def spans(self, start: int, end: int) -> Iterator[Span]:
        """The bytes from `start` to `end` of `flat`, row by row."""
        stride = self.data.shape[1]
        for row in range(start // stride, -(-end // stride)):
            yield self.name, row, max(start - row * stride, 0), min(end - row * stride, stride)


@dataclass(slots=True)
class Region:
    """The pages of one group in one layer of one rank: [row, token, shard, record] in a buffer.

    A state has one record for all tokens.
    """

    group: MoveGroup
    layer: int
    shards: tuple[int, ...]
    record: int
    tokens: int
    splits: int
    buffer: Buffer

    @property
    def token_bytes(self) -> int:
        """Bytes of a token, all shards of this rank."""
        return self.record * len(self.shards)

    @property
    def page_bytes(self) -> int:
        return self.tokens * self.token_bytes

    @property
    def is_sharded(self) -> bool:
        return self.group in ("heads", "state")

    def start(self, row: int) -> int:
        return row * self.buffer.data.shape[1]

    def wanted(self, generation: int, start: int, end: int) -> Tensor:
        """The bytes [end - start, token_bytes] of these tokens of a sequence."""
        return _wanted(
            GROUPS.index(self.group), self.layer, self.shards, self.record, generation, start, end
        )

    def piece(self, source: Region, source_start: int, target_start: int, num_bytes: int) -> Piece:
        given = source.buffer.flat
        taken = self.buffer.flat
        # A wrong length may run past the memory, where a real copy would fault.
        count = min(num_bytes, len(given) - source_start, len(taken) - target_start)
        return Piece(
            given[source_start : source_start + count],
            taken[target_start : target_start + count],
            tuple(source.buffer.spans(source_start, source_start + count)),
            tuple(self.buffer.spans(target_start, target_start + count)),
        )


@functools.lru_cache(maxsize=2048)
def _wanted(
    group: int,
    layer: int,
    shards: tuple[int, ...],
    record: int,
    generation: int,
    start: int,
    end: int,
) -> Tensor:
    # What belongs at a place follows from group, layer, shard and token. So a byte that was moved
    # to a wrong place says whose it is.
    parts = [records(group, layer, shard, generation, end, record)[start:] for shard in shards]
    return torch.cat(parts, dim=1)


@dataclass(slots=True)
class Memory:
    """The cache of one rank, on a device or on the host."""

    regions: list[Region]
    buffers: list[Buffer] = field(default_factory=list)

    def blank(self, table: str, row: int) -> Iterator[tuple[Buffer, int]]:
        """The buffers that a list of blocks uses, with the bytes of their pages."""
        for buffer in self.buffers:
            inside = [region for region in self.regions if region.buffer is buffer]
            if any(TABLES[region.group] == table for region in inside):
                yield buffer, max(region.page_bytes for region in inside)


def memory_of(params: MoveParams, name: str, rank: int, num_ranks: int, num_rows: int) -> Memory:
    """The cache of a rank: nothing in it is written yet.

    A window and a state of one layer share a buffer.
    """
    memory = Memory([])
    each = NUM_SHARDS // num_ranks
    local = tuple(range(rank * each, (rank + 1) * each))
    for layer in range(params.num_layers):
        pools: dict[str, list[tuple[MoveGroup, tuple[int, ...], int, int]]] = {}
        for group in params.groups:
            shards = local if group in ("heads", "state") else (0,)
            tokens: int = 1 if group == "state" else params.block_size
            record = _RECORDS.get(group) or min(2 * params.block_size * _RECORDS["window"], 4096)
            # A hybrid model gives a block to a window or to a state, whichever needs it, as vLLM's
            # do.
            name_of_pool = "slot" if group in ("window", "state") else str(group)
            pools.setdefault(name_of_pool, []).append((group, shards, tokens, record))
        for pool, parts in pools.items():
            page = max(tokens * record * len(shards) for _, shards, tokens, record in parts)
            # The padding has a value of its own: a copy that is too long changes it.
            data = torch.full((num_rows, page + PAD_BYTES), PAD, dtype=torch.uint8)
            # Each word says that nothing was moved here, until an owner writes it.
            data[:, :page] = unsent(page)
            buffer = Buffer(f"{name} rank {rank} {pool} of layer {layer}", data)
            memory.buffers.append(buffer)
            for group, shards, tokens, record in parts:
                # A kernel may see smaller blocks than the manager hands out.
                splits = max(tokens // params.kernel_block, 1)
                memory.regions.append(Region(group, layer, shards, record, tokens, splits, buffer))
    return memory
