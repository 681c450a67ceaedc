"""The bytes of the block pool, and what each layer sees in them.

A block is a run of bytes in each of a few slots. An MLA layer reads a block of its slot as a page of latents in the
cache's type (window layers may have a type of their own, sparse layers keep index keys behind the latents); a
linear-attention layer reads the same bytes as its float32 state. Layers of one group have slots of their own, layers
of different groups share one, as in a hybrid allocator: a block that changes hands changes its meaning, and
float32 states read as bfloat16 latents are NaN once in five hundred values (PR 43961).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.core.params import KvType
from harness.core.seams import seam
from harness.engine import cache_scales
from harness.engine.schedule.config import NULL_BLOCK, PAGE_SIZE
from harness.engine.schedule.model_config import LayerType, ModelConfig
from harness.engine.schedule.scheduler import Step
from harness.engine.schedule.sequence import Sequence
from harness.engine.schedule.zeroing import CacheGroup, Group
from harness.memory.poison.patterns import Poison

KV_DTYPES: dict[KvType, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
}
GROUP_OF: dict[LayerType, Group] = {"mla": "attention", "sparse": "attention", "window": "window", "kda": "state"}
"""Layers of one group share a block table; groups share the pool."""
_ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Where each layer's part of a block lies. `slot_of_layer[i]` is the slot of layer i, among layers of its group.

    `kv_dtype` and `kv_scale` are of full and sparse layers, `window_dtype` and `window_scale` of window layers;
    `index_dim` is the width of an index key, 0 where no layer is sparse.
    """

    num_blocks: int
    num_slots: int
    block_bytes: int
    slot_of_layer: tuple[int, ...]
    kv_dtype: torch.dtype
    kv_scale: float | None
    latent_dim: int
    conv_shape: tuple[int, int]
    ssm_shape: tuple[int, int, int]
    group_of_layer: tuple[Group, ...]
    window_dtype: torch.dtype
    window_scale: float | None
    index_dim: int

    @classmethod
    def of(cls, config: ModelConfig, kv: KvType, num_blocks: int, window_kv: KvType | None = None) -> CacheLayout:
        """The layout for a model: a block is as large as the largest of a page of any group and a state."""
        groups = tuple(GROUP_OF[kind] for kind in config.layer_types)
        slot_of_layer = tuple(groups[:layer].count(group) for layer, group in enumerate(groups))
        window_kv = window_kv or kv
        index_dim = config.index_head_dim if "sparse" in config.layer_types else 0
        width = config.kda_num_heads * config.kda_head_dim
        conv_shape = (3 * width, config.conv_kernel_size - 1)
        ssm_shape = (config.kda_num_heads, config.kda_head_dim, config.kda_head_dim)
        dtype = KV_DTYPES[kv]
        needed = max(
            PAGE_SIZE * (config.latent_dim * dtype.itemsize + index_dim * torch.float32.itemsize),
            PAGE_SIZE * config.latent_dim * KV_DTYPES[window_kv].itemsize if "window" in groups else 0,
            (math.prod(ssm_shape) + math.prod(conv_shape)) * torch.float32.itemsize,
        )
        return cls(
            num_blocks=num_blocks,
            num_slots=max(slot_of_layer) + 1,
            block_bytes=-(-needed // _ALIGNMENT) * _ALIGNMENT,
            slot_of_layer=slot_of_layer,
            kv_dtype=dtype,
            kv_scale=cache_scales.settled(cache_scales.NOT_LOADED) if kv == "fp8_e4m3" else None,
            latent_dim=config.latent_dim,
            conv_shape=conv_shape,
            ssm_shape=ssm_shape,
            group_of_layer=groups,
            window_dtype=KV_DTYPES[window_kv],
            window_scale=cache_scales.settled(cache_scales.NOT_LOADED) if window_kv == "fp8_e4m3" else None,
            index_dim=index_dim,
        )

    @property
    def groups(self) -> tuple[CacheGroup, ...]:
        """The groups of layers that share the pool, and the type that each keeps there."""
        dtypes = {"attention": str(self.kv_dtype), "window": str(self.window_dtype), "state": "state"}
        return tuple(CacheGroup(group, dtypes[group]) for group in dict.fromkeys(self.group_of_layer))

    def scale_of(self, layer: int) -> float | None:
        """What the cache of a layer divides by; None where it does not."""
        return self.window_scale if self.group_of_layer[layer] == "window" else self.kv_scale


class PagedMemory:
    """The pool's bytes, `data` [slots, N, block_bytes] uint8, and typed views of them."""

    def __init__(self, layout: CacheLayout, data: Tensor | None = None, device: torch.device | str = "cpu") -> None:
        self.layout = layout
        shape = (layout.num_slots, layout.num_blocks, layout.block_bytes)
        self.data = torch.zeros(shape, dtype=torch.uint8, device=device) if data is None else data
        self._as_latents = self.data.view(layout.kv_dtype)
        self._as_window = self.data.view(layout.window_dtype)
        self._as_floats = self.data.view(torch.float32)

    def snapshot(self) -> PagedMemory:
        """A copy of all bytes, to run the same step on twice."""
        return PagedMemory(self.layout, self.data.clone())

    def latents(self, layer: int) -> Tensor:
        """The paged cache [N, P, D] of an MLA layer, in the type of its group; pages are a block apart."""
        is_window = self.layout.group_of_layer[layer] == "window"
        typed = self._as_window if is_window else self._as_latents
        return self._shaped(typed, layer, 0, (PAGE_SIZE, self.layout.latent_dim))

    def index_keys(self, layer: int) -> Tensor:
        """The paged index keys [N, P, I] float32 of a sparse layer; they follow a block's latents."""
        start = PAGE_SIZE * self.layout.latent_dim * self.layout.kv_dtype.itemsize // torch.float32.itemsize
        return self._shaped(self._as_floats, layer, start, (PAGE_SIZE, self.layout.index_dim))

    def ssm_states(self, layer: int) -> Tensor:
        """The recurrent states [N, H, dk, dv] float32 of a linear-attention layer."""
        return self._shaped(self._as_floats, layer, 0, self.layout.ssm_shape)

    def conv_states(self, layer: int) -> Tensor:
        """The convolution states [N, 3P, W - 1] float32 of a linear-attention layer; they follow the recurrent one."""
        return self._shaped(self._as_floats, layer, math.prod(self.layout.ssm_shape), self.layout.conv_shape)

    def _shaped(self, typed: Tensor, layer: int, start: int, shape: tuple[int, ...]) -> Tensor:
        """Elements from `start` on of each block of a layer's slot, as [N, *shape]."""
        blocks = typed[self.layout.slot_of_layer[layer]]
        return blocks[:, start : start + math.prod(shape)].view(-1, *shape)

    def block(self, block: int) -> Tensor:
        """A copy of one block's bytes [slots, block_bytes]."""
        return self.data[:, block].clone()

    def fill(self, blocks: Iterable[int], site: str, poison: Poison, group: Group = "attention") -> None:
        """Make the bytes of `blocks` those of memory of `site`: the poison's where it covers the site, else zeros.

        A sentinel is one of the type in which the layers of `group` keep latents.
        """
        typed = self._as_window if group == "window" else self._as_latents
        for block in blocks:
            poison.fill_(typed[:, block], site)

    def zero(self, blocks: Iterable[int]) -> None:
        """Zero the bytes of `blocks`."""
        chosen = list(blocks)
        if chosen:
            self.data[:, chosen] = 0

    def fill_tail(self, sequence: Sequence, length: int, poison: Poison) -> None:
        """Fill the slots of `sequence`'s pages at and past `length` with the poison's `kv.tail`."""
        dim = self.layout.latent_dim
        for typed, blocks in ((self._as_latents, sequence.blocks), (self._as_window, sequence.window_blocks)):
            for page in range(length // PAGE_SIZE, len(blocks)):
                start = max(length - page * PAGE_SIZE, 0)
                poison.fill_(typed[:, blocks[page], start * dim : PAGE_SIZE * dim], "kv.tail")
        if self.layout.index_dim:
            for layer in (i for i, group in enumerate(self.layout.group_of_layer) if group == "attention"):
                for page in range(length // PAGE_SIZE, len(sequence.blocks)):
                    start = max(length - page * PAGE_SIZE, 0)
                    poison.fill_(self.index_keys(layer)[sequence.blocks[page], start:], "kv.tail")


def initial_memory(
    layout: CacheLayout, trap_block: int, poison: Poison, device: torch.device | str = "cpu"
) -> PagedMemory:
    """The pool before the first request: every block belongs to nobody."""
    memory = PagedMemory(layout, device=device)
    memory.fill(range(NULL_BLOCK + 1, trap_block), "kv.free", poison)
    memory.fill((NULL_BLOCK,), "kv.null", poison)
    memory.fill((trap_block,), "block_table.pad", poison)
    return memory


def hand_over_blocks(memory: PagedMemory, step: Step, poison: Poison) -> None:
    """Bring the bytes of blocks that changed hands in `step` to what their next owner may find."""
    memory.fill(step.freed_blocks, "kv.free", poison)
    memory.fill((*step.new_attention_blocks, *step.new_state_blocks), "kv.new", poison)
    memory.fill(step.new_window_blocks, "kv.new", poison, "window")
    zero_listed_blocks(memory, step)


@seam("kv.runner-ignores-zero-list")
def zero_listed_blocks(memory: PagedMemory, step: Step) -> None:
    """Zero the blocks that the scheduler lists, before anything reads them.

    The list is a promise between two parts of an engine; a runner that is written anew has to keep it too
    (PR 43990).
    """
    memory.zero(step.blocks_to_zero)
