"""Faults of the block pool: foreign bits in reused blocks, unwritten prefixes, blocks kept or given too long."""

from __future__ import annotations

from collections import deque

from torch import Tensor

from harness.engine.memory import PagedMemory
from harness.engine.schedule.block_pool import CacheGroup, FreeList, Group
from harness.engine.schedule.scheduler import Sequence, Step


def ignore_zero_list(memory: PagedMemory, step: Step) -> None:
    """Ignore the scheduler's list of blocks to zero, as a new model runner did (PR 43990)."""


def gate_by_kind(groups: tuple[CacheGroup, ...]) -> frozenset[Group]:
    """Zero only in models with states, not with fp8 full attention and a bfloat16 window (PR 47574, PR 51749)."""
    names = {group.name for group in groups}
    return frozenset({"attention"}) if "state" in names else frozenset()


def zero_states_only(groups: tuple[CacheGroup, ...]) -> frozenset[Group]:
    """Zero new blocks of states, which start from zeros anyway, and no pages (PR 35219)."""
    return frozenset({"state"})


def reserve_unchecked(num_blocks: int, free_list: FreeList) -> list[int]:
    """Take any block for the null block, so that block 0 is given to a request (ovg-project/kvcached#398)."""
    free = deque(range(num_blocks - 1))
    if free_list == "lifo":
        free.pop()
    else:
        free.popleft()
    return list(free)


def skip_attention_blocks(groups: tuple[CacheGroup, ...]) -> frozenset[Group]:
    """Zero no page: the check asks for full-attention layers, and MLA is another kind (PR 43961)."""
    return frozenset()


def values_as_loaded(values: Tensor, used: Tensor) -> Tensor:
    """values [A, 64, R] as the page holds them, `used` [A, 64] ignored: 0 times NaN (flashinfer-ai/flashinfer#941)."""
    return values


def tokens_scheduled(sequence: Sequence, num_new_tokens: int) -> int:
    """Count the tokens of this step as written. If it is dropped, later prompts share unwritten pages (PR 50283)."""
    return sequence.num_computed_tokens + num_new_tokens


def keep_evicted(window_blocks: list[int], num_evicted: int) -> None:
    """Leave freed blocks in the table; other requests get them soon (PR 42273)."""
