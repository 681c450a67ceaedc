"""What memory without an owner holds in this engine: the poison of a case.

An engine in production has none of this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch_poison.patterns import Poison

from harness.engine.memory import PagedMemory
from harness.engine.schedule.block_pool import Group
from harness.engine.schedule.config import NULL_BLOCK, PAGE_SIZE
from harness.engine.schedule.sequence import ScheduledSequence, Step


def fill(
    memory: PagedMemory,
    blocks: Iterable[int],
    site: str,
    poison: Poison,
    group: Group = "attention",
) -> None:
    """Fill `blocks` as memory of `site`, with sentinels in the type of the latents of `group`."""
    typed = memory.typed(group)
    for block in blocks:
        poison.fill_(typed[:, block], site)


def fill_pool(memory: PagedMemory, trap_block: int, site: str, poison: Poison) -> None:
    """Fill the blocks that requests may own as memory of `site`, the null block and the trap as
    what they are.
    """
    fill(memory, range(NULL_BLOCK + 1, trap_block), site, poison)
    fill(memory, (NULL_BLOCK,), "kv.null", poison)
    fill(memory, (trap_block,), "block_table.pad", poison)


def fill_handed_over(memory: PagedMemory, step: Step, poison: Poison) -> None:
    """Fill the blocks that changed their owner in `step` as memory that the next owner may find."""
    fill(memory, step.freed_blocks, "kv.free", poison)
    fill(memory, (*step.new_attention_blocks, *step.new_state_blocks), "kv.new", poison)
    fill(memory, step.new_window_blocks, "kv.new", poison, "window")


def fill_tails(memory: PagedMemory, ordered: list[ScheduledSequence], poison: Poison) -> None:
    """Fill the slots behind the tokens of each request with the poison's `kv.tail`."""
    if not poison.covers("kv.tail"):
        return
    layout = memory.layout
    sparse_layers = [
        i
        for i, group in enumerate(layout.group_of_layer)
        if layout.index_dim and group == "attention"
    ]
    for item in ordered:
        sequence = item.sequence
        length = item.sequence.num_computed_tokens + item.num_new_tokens
        tail = tail_slots(sequence.blocks, length)
        fill_slots(memory.typed("attention"), tail, layout.latent_dim, poison)
        fill_slots(
            memory.typed("window"),
            tail_slots(sequence.window_blocks, length),
            layout.latent_dim,
            poison,
        )
        # Index keys lie behind the latents of a block, in a type of their own.
        for layer in sparse_layers:
            for block, start in tail:
                poison.fill_(memory.index_keys(layer)[block, start:], "kv.tail")


def fill_slots(typed: Tensor, tail: list[tuple[int, int]], dim: int, poison: Poison) -> None:
    """Fill the latents of `dim` elements of the slots `tail` in the pool typed [slots, N, elements]
    of the cache's dtype, such as bfloat16.
    """
    for block, start in tail:
        poison.fill_(typed[:, block, start * dim : PAGE_SIZE * dim], "kv.tail")


def tail_slots(blocks: list[int], length: int) -> list[tuple[int, int]]:
    """The pages of a request with slots past its `length` tokens: (block, first such slot)."""
    return [
        (blocks[p], max(length - p * PAGE_SIZE, 0)) for p in range(length // PAGE_SIZE, len(blocks))
    ]


def table_filler(poison: Poison) -> int:
    """The block-table entry past the last page: the null block, or the poison's trap."""
    if not poison.covers("block_table.pad"):
        return NULL_BLOCK
    return int(poison.empty(1, dtype=torch.int32, site="block_table.pad").item())


def trap_expert(weight: Tensor, poison: Poison) -> Tensor:
    """One more expert [1, ...] behind the weights [X, ...], which an id from uninitialised memory
    leads to.

    It has the type of the weights, float32.
    """
    return poison.empty(
        1, *weight.shape[1:], dtype=weight.dtype, site="router.ids", device=weight.device
    )


def free_memory_sweep(device: torch.device, poison: Poison) -> Callable[[], object]:
    """A function that fills the free memory of `device`.

    On a CPU it does nothing: each allocation is filled.
    """
    if device.type != "cuda" or poison.is_natural:
        return lambda: None
    # A run on a CPU needs no kernels of CUDA.
    from torch_poison.cuda_sweep import CudaSweep, fill_word

    sweep = CudaSweep.of(device)
    word = fill_word(poison, "workspace")
    return lambda: sweep(word)
