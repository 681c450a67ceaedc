"""The owners of blocks, the prefixes that requests may share, and the blocks that must be zeroed.

No torch.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from harness.core.errors import InputError
from harness.core.seams import seam
from harness.engine.schedule.config import NULL_BLOCK, PAGE_SIZE

FreeList = Literal["fifo", "lifo"]


@dataclass(frozen=True, slots=True)
class Prefix:
    """All tokens up to the end of a full page, and their hash.

    Other tokens may have the same hash.
    """

    hash: int
    tokens: tuple[int, ...]
    salt: int = 0
    """The adapter that computed the page."""


class BlockPool:
    """Blocks 1 .. N-2 of a pool of N, shared by all layers of a model.

    Block 0 is the null block. The last block is the trap: it has no owner, so a read of it followed
    an unwritten index. A FIFO free list gives the block that has been free longest, a LIFO list the
    one freed last.

    A block may have several owners (prefix caching). A free block with a hash keeps its content and
    can be shared until it is given away.
    """

    def __init__(self, num_blocks: int, free_list: FreeList = "fifo") -> None:
        if num_blocks < 3:
            raise InputError(
                f"num_blocks is {num_blocks}: two are reserved (null, trap), so give at least 3"
            )
        self.num_blocks = num_blocks
        self.trap_block = num_blocks - 1
        self._take_last = free_list == "lifo"
        self._free = deque(blocks_to_give(num_blocks, free_list))
        self._num_reserved = 0
        self._num_owners: dict[int, int] = {}
        self._prefix_of: dict[int, Prefix] = {}
        self._block_of: dict[int, int] = {}
        self.events: Counter[str] = Counter()
        """How often each event of :data:`harness.core.serving_params.Event` happened to a page."""

    @property
    def num_usable_blocks(self) -> int:
        """The number of blocks that requests may own."""
        return self.num_blocks - 2 - self._num_reserved

    @property
    def num_free_blocks(self) -> int:
        return len(self._free)

    @property
    def free_blocks(self) -> tuple[int, ...]:
        """The free blocks in FIFO order."""
        return tuple(self._free)

    @property
    def num_references(self) -> int:
        """The owners of all blocks, a block with two owners twice."""
        return sum(self._num_owners.values()) - self._num_reserved

    def next_blocks(self, count: int) -> list[int]:
        return list(islice(reversed(self._free) if self._take_last else self._free, count))

    def allocate(self, count: int) -> list[int]:
        """Give `count` blocks. Raises ValueError if fewer are free."""
        if count > len(self._free):
            raise ValueError(f"{count} blocks asked for, {len(self._free)} are free")
        given = [
            self._free.pop() if self._take_last else self._free.popleft() for _ in range(count)
        ]
        for block in given:
            # Forgetting comes with the new owner, not with the free: a cached page can be found
            # while it is free.
            self._num_owners[block] = 1
            # Whoever is given a block writes it, so a prompt must not find the old prefix there any
            # more.
            self.forget(block)
        return given

    def reserve(self) -> int:
        (block,) = self.allocate(1)
        self._num_reserved += 1
        return block

    def free(self, blocks: Iterable[int]) -> list[int]:
        """Take blocks back.

        Returns the blocks without an owner and without a hash, which no request can read any more.

        Raises ValueError for a block without an owner.
        """
        unreadable = []
        for block in blocks:
            if not self._num_owners.get(block):
                raise ValueError(f"block {block} is freed but has no owner")
            self._num_owners[block] -= 1
            if self._num_owners[block] == 0:
                # At the end, which a FIFO list gives away last and a LIFO list next.
                self._free.append(block)
                # A cached block stays readable, because a prompt may find it; so it is not poisoned
                # yet.
                if block not in self._prefix_of:
                    unreadable.append(block)
        return unreadable

    def find(self, prefixes: Iterable[Prefix]) -> list[int]:
        """The blocks of the longest cached one of these prefixes, which grow by a page."""
        wanted = list(prefixes)
        found = [self.held(prefix) for prefix in wanted]
        shared = unbroken(found)
        if len(shared) < len(wanted):
            self._note_miss(wanted[len(shared)])
        self.events["hole"] += any(block is not None for block in found[len(shared) :])
        return shared

    def share(self, blocks: Iterable[int]) -> None:
        """Add an owner to each of `blocks`, found by `find`."""
        for block in blocks:
            # Without an owner it is in the free list, where another request would be given it too.
            if not self._num_owners.get(block):
                self.take(block)
            self._num_owners[block] = self._num_owners.get(block, 0) + 1

    @seam("prefix.hit-left-in-free-list")
    def take(self, block: int) -> None:
        """Take a free block that a prompt found from the free list, before anyone else is given
        it.
        """
        self._free.remove(block)

    def cache(self, block: int, prefix: Prefix) -> None:
        """Make `block` shareable by `prefix`, all tokens up to its end.

        The first block with this hash stays.
        """
        self.events["concurrent"] += self._is_computed_twice(block, prefix)
        if prefix.hash not in self._block_of and block not in self._prefix_of:
            self._prefix_of[block] = prefix
            self._block_of[prefix.hash] = block

    def state_after(self, pages: list[Prefix]) -> int | None:
        """The block with the cached state after these pages, or None."""
        return self.held(state_of(pages[-1])) if pages else None

    @seam("prefix.state-ahead-of-pages")
    def pages_with_state(self, wanted: list[Prefix], num_found: int) -> int:
        """The most of the `num_found` cached pages of a prompt that a state is cached for as well.

        Pages may be looked up one further and dropped again, a state may not
        (vllm-project/vllm#50630).
        """
        return next(
            (n for n in range(num_found, 0, -1) if self.state_after(wanted[:n]) is not None), 0
        )

    def keep_state(self, pages: list[Prefix]) -> list[int]:
        """Cache the state after `pages` in a block that stays free.

        Returns it; none if it is there, or no block is.
        """
        if not self._free or self.state_after(pages) is not None:
            return []
        # Taken and freed at once: it moves to the end of the free list, and is evicted last.
        given = self.allocate(1)
        self.cache(given[0], state_of(attested(pages)))
        self.free(given)
        return given

    def flush(self) -> list[int]:
        """Forget all prefixes. Returns the free blocks."""
        self._prefix_of.clear()
        self._block_of.clear()
        return list(self._free)

    @seam("prefix.entry-after-eviction")
    def forget(self, block: int) -> None:
        """Make a block that gets a new owner unshareable, or a prompt would find another prefix in
        it.
        """
        prefix = self._prefix_of.pop(block, None)
        if prefix is not None:
            self.events["evict"] += 1
            del self._block_of[prefix.hash]

    def held(self, wanted: Prefix) -> int | None:
        """The block of a cached prefix, or None."""
        block = self._block_of.get(wanted.hash)
        return (
            block if block is not None and is_same_prefix(self._prefix_of[block], wanted) else None
        )

    def _is_computed_twice(self, block: int, prefix: Prefix) -> bool:
        first = self._block_of.get(prefix.hash, block)
        return (
            first != block
            and bool(self._num_owners.get(first))
            and self._prefix_of[first] == prefix
        )

    def _note_miss(self, wanted: Prefix) -> None:
        # An engine sees a miss only; the events say why there is none.
        self.events["collision"] += wanted.hash in self._block_of
        page = wanted.tokens[-PAGE_SIZE:]
        self.events["other_past"] += any(
            held.tokens[-PAGE_SIZE:] == page for held in self._prefix_of.values()
        )


@seam("prefix.found-behind-a-hole")
def unbroken(found: list[int | None]) -> list[int]:
    """The blocks of a prompt's pages up to the first one that is not cached (None).

    A page behind it may still be cached: its own prefix was computed once, and an earlier page of
    it was given away. It has no page to stand behind (llm-d/llm-d-inference-sim#705).
    """
    blocks = []
    for block in found:
        if block is None:
            break
        blocks.append(block)
    return blocks


@seam("kv.null-block-unchecked")
def blocks_to_give(num_blocks: int, free_list: FreeList) -> list[int]:
    """The blocks that requests may own: all but the null block and the trap.

    The null block must be block 0, not the first block that an allocator gives: tables are padded
    with 0, and kernels skip the state in block 0 (ovg-project/kvcached#398).
    """
    return list(range(NULL_BLOCK + 1, num_blocks - 1))


@seam("prefix.hash-not-compared")
def is_same_prefix(held: Prefix, wanted: Prefix) -> bool:
    """Whether a block with the hash of a prefix has its tokens, too. Hashes collide."""
    return (held.tokens, held.salt) == (wanted.tokens, wanted.salt)


def prefixes(tokens: list[int], num_hashes: int | None = None, salt: int = 0) -> Iterator[Prefix]:
    """The prefix at the end of each full page of `tokens`.

    A small number of hashes makes collisions.
    """
    parent = salt
    for end in range(PAGE_SIZE, len(tokens) + 1, PAGE_SIZE):
        # Each hash has that of the page before it in it, so equal pages behind other ones differ.
        # Python's hash of integers is the same in every process, so runs repeat their collisions.
        parent = hash((parent, tuple(tokens[end - PAGE_SIZE : end])))
        yield Prefix(
            parent if num_hashes is None else parent % num_hashes, tuple(tokens[:end]), salt
        )


def state_of(prefix: Prefix) -> Prefix:
    """The key of the state after these tokens, beside the key of their last page."""
    return replace(prefix, hash=hash((prefix.hash, -1)))


@seam("prefix.state-under-shorter-key")
def attested(pages: list[Prefix]) -> Prefix:
    """The prefix of a state's key: all its pages.

    Fewer have other prompts as well (vllm-project/vllm-ascend#10296 of the port to Ascend).
    """
    return pages[-1]


@seam("prefix.state-behind-its-page")
def up_to_page_end(num_computed: int, num_new: int, num_tokens: int) -> int:
    """Cut a chunk of `num_new` tokens at the last end of a page before the last token: there its
    state is kept.

    A state that holds tokens behind a page, such as rejected drafts, is no state of the page's
    prefix (vllm-project/vllm#53912). With `num_tokens` 0 nothing is cut.
    """
    end = min(num_computed + num_new, num_tokens - 1) // PAGE_SIZE * PAGE_SIZE
    return end - num_computed if end > num_computed else num_new


@seam("window.evicted-blocks-in-table")
def forget_evicted(window_blocks: list[int], num_evicted: int) -> None:
    """Replace the first `num_evicted` blocks, which are freed, by the null block.

    A decode kernel that masks by multiplying reads the whole table, and other requests own these
    blocks (vllm-project/vllm#42273).
    """
    window_blocks[:num_evicted] = [NULL_BLOCK] * num_evicted


Group = Literal["attention", "window", "state"]


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that read their blocks alike, and the element type there ("state" for float32
    states).
    """

    name: Group
    dtype: str


@seam("kv.skip-zero-new-blocks", "kv.zero-gate-by-exact-type", "kv.states-zeroed-only")
def groups_to_zero(groups: tuple[CacheGroup, ...]) -> frozenset[Group]:
    """The groups with new blocks to zero: all groups with pages, if the groups of the pool store
    different types.

    A decode kernel that masks unused slots by multiplying reads whole pages, and bits of another
    type may be NaN: float32 states read as bfloat16 latents (vllm-project/vllm#35219,
    vllm-project/vllm#43961), or bfloat16 latents of window layers read as fp8
    (vllm-project/vllm#47574, vllm-project/vllm#51749). States start from zeros anyway.
    """
    if len({group.dtype for group in groups}) < 2:
        return frozenset()
    return frozenset(group.name for group in groups if group.name != "state")
