"""Who owns which block. No torch: what a block's bytes are is the business of `memory`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Literal

from harness.engine.config import NULL_BLOCK
from harness.errors import InputError

FreeList = Literal["fifo", "lifo"]


class BlockPool:
    """Blocks 1 .. N-2 of a pool of N, shared by all layers of a model; each has at most one owner.

    Block 0 is the null block. The last one is the trap: never given to anybody, so whoever reads it followed an index
    that nobody wrote. A FIFO free list gives the block that has been free longest, a LIFO one the hottest.
    """

    def __init__(self, num_blocks: int, free_list: FreeList = "fifo") -> None:
        if num_blocks < 3:
            raise InputError(f"num_blocks is {num_blocks}: two are reserved (null, trap), so give at least 3")
        self.num_blocks = num_blocks
        self.trap_block = num_blocks - 1
        self._take_last = free_list == "lifo"
        self._free = deque(range(NULL_BLOCK + 1, self.trap_block))
        self._owned: set[int] = set()

    @property
    def num_usable_blocks(self) -> int:
        """Blocks that can be given at all."""
        return self.num_blocks - 2

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be given now."""
        return len(self._free)

    @property
    def free_blocks(self) -> tuple[int, ...]:
        """The free blocks, in the order in which a FIFO list would give them."""
        return tuple(self._free)

    def allocate(self, count: int) -> list[int]:
        """Give `count` blocks; raises ValueError when there are fewer, so ask `num_free_blocks` first."""
        if count > len(self._free):
            raise ValueError(f"{count} blocks asked for, {len(self._free)} are free")
        given = [self._free.pop() if self._take_last else self._free.popleft() for _ in range(count)]
        self._owned.update(given)
        return given

    def free(self, blocks: Iterable[int]) -> None:
        """Take blocks back; raises ValueError for one that nobody owns."""
        for block in blocks:
            if block not in self._owned:
                raise ValueError(f"block {block} is freed but has no owner")
            self._owned.remove(block)
            self._free.append(block)
