"""The bytes of the block pool, and what each layer sees in them.

A block is a run of bytes in each of a few slots. An MLA layer reads a block of its slot as a page of latents in the
cache's type; a linear-attention layer reads the same bytes as its float32 state. Layers of one kind have slots of
their own, layers of different kinds share one, as in vLLM's hybrid allocator: a block that changes hands changes its
meaning, and float32 states read as bfloat16 latents are NaN once in five hundred values (vllm-project/vllm#43961).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from harness.engine.config import KV_SCALE, NULL_BLOCK, PAGE_SIZE
from harness.engine.scheduler import Step
from harness.engine.sequence import Sequence
from harness.model.config import ModelConfig
from harness.poison.patterns import Poison
from harness.scenario.params import KvType

KV_DTYPES: dict[KvType, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
}
_ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Where each layer's part of a block lies. `slot_of_layer[i]` is the slot of layer i, among layers of its kind."""

    num_blocks: int
    num_slots: int
    block_bytes: int
    slot_of_layer: tuple[int, ...]
    kv_dtype: torch.dtype
    kv_scale: float | None
    latent_dim: int
    conv_shape: tuple[int, int]
    ssm_shape: tuple[int, int, int]

    @classmethod
    def of(cls, config: ModelConfig, kv: KvType, num_blocks: int) -> CacheLayout:
        """The layout for a model: a block is as large as the larger of a page of latents and a state."""
        kinds = config.layer_types
        slot_of_layer = tuple(kinds[:layer].count(kind) for layer, kind in enumerate(kinds))
        width = config.kda_num_heads * config.kda_head_dim
        conv_shape = (3 * width, config.conv_kernel_size - 1)
        ssm_shape = (config.kda_num_heads, config.kda_head_dim, config.kda_head_dim)
        dtype = KV_DTYPES[kv]
        needed = max(
            PAGE_SIZE * config.latent_dim * dtype.itemsize,
            (math.prod(ssm_shape) + math.prod(conv_shape)) * torch.float32.itemsize,
        )
        return cls(
            num_blocks=num_blocks,
            num_slots=max(slot_of_layer) + 1,
            block_bytes=-(-needed // _ALIGNMENT) * _ALIGNMENT,
            slot_of_layer=slot_of_layer,
            kv_dtype=dtype,
            kv_scale=KV_SCALE if kv == "fp8_e4m3" else None,
            latent_dim=config.latent_dim,
            conv_shape=conv_shape,
            ssm_shape=ssm_shape,
        )


class PagedMemory:
    """The pool's bytes, `data` [slots, N, block_bytes] uint8, and typed views of them."""

    def __init__(
        self, layout: CacheLayout, data: torch.Tensor | None = None, device: torch.device | str = "cpu"
    ) -> None:
        self.layout = layout
        shape = (layout.num_slots, layout.num_blocks, layout.block_bytes)
        self.data = torch.zeros(shape, dtype=torch.uint8, device=device) if data is None else data
        self._as_latents = self.data.view(layout.kv_dtype)
        self._as_floats = self.data.view(torch.float32)

    def snapshot(self) -> PagedMemory:
        """A copy of all bytes, to run the same step on twice."""
        return PagedMemory(self.layout, self.data.clone())

    def latents(self, layer: int) -> torch.Tensor:
        """The paged cache [N, P, D] of an MLA layer, in the cache's type; pages are a block apart."""
        return self._shaped(self._as_latents, layer, 0, (PAGE_SIZE, self.layout.latent_dim))

    def ssm_states(self, layer: int) -> torch.Tensor:
        """The recurrent states [N, H, dk, dv] float32 of a linear-attention layer."""
        return self._shaped(self._as_floats, layer, 0, self.layout.ssm_shape)

    def conv_states(self, layer: int) -> torch.Tensor:
        """The convolution states [N, 3P, W - 1] float32 of a linear-attention layer; they follow the recurrent one."""
        return self._shaped(self._as_floats, layer, math.prod(self.layout.ssm_shape), self.layout.conv_shape)

    def _shaped(self, typed: torch.Tensor, layer: int, start: int, shape: tuple[int, ...]) -> torch.Tensor:
        """Elements from `start` on of each block of a layer's slot, as [N, *shape]."""
        blocks = typed[self.layout.slot_of_layer[layer]]
        return blocks[:, start : start + math.prod(shape)].view(-1, *shape)

    def block(self, block: int) -> torch.Tensor:
        """A copy of one block's bytes [slots, block_bytes]."""
        return self.data[:, block].clone()

    def fill(self, blocks: Iterable[int], site: str, poison: Poison) -> None:
        """Make the bytes of `blocks` those of memory of `site`: the poison's where it covers the site, else zeros."""
        for block in blocks:
            poison.fill_(self._as_latents[:, block], site)

    def zero(self, blocks: Iterable[int]) -> None:
        """Zero the bytes of `blocks`."""
        self.data[:, list(blocks)] = 0

    def fill_tail(self, sequence: Sequence, length: int, poison: Poison) -> None:
        """Fill the slots of `sequence`'s pages at and past `length` with the poison's `kv.tail`."""
        dim = self.layout.latent_dim
        for page in range(length // PAGE_SIZE, len(sequence.blocks)):
            start = max(length - page * PAGE_SIZE, 0)
            tail = self._as_latents[:, sequence.blocks[page], start * dim : PAGE_SIZE * dim]
            poison.fill_(tail, "kv.tail")


def initial_memory(
    layout: CacheLayout, trap_block: int, poison: Poison, device: torch.device | str = "cpu"
) -> PagedMemory:
    """The pool before the first request: every block belongs to nobody."""
    memory = PagedMemory(layout, device=device)
    memory.fill(range(NULL_BLOCK + 1, trap_block), "kv.free", poison)
    memory.fill((NULL_BLOCK,), "kv.null", poison)
    memory.fill((trap_block,), "block_table.pad", poison)
    return memory


def hand_over_blocks(memory: PagedMemory, step: Step, is_hybrid: bool, poison: Poison) -> None:
    """Bring the bytes of blocks that changed hands in `step` to what their next owner may find."""
    memory.fill(step.freed_blocks, "kv.free", poison)
    memory.fill((*step.new_attention_blocks, *step.new_state_blocks), "kv.new", poison)
    memory.zero(blocks_to_zero(step, is_hybrid))


def blocks_to_zero(step: Step, is_hybrid: bool) -> tuple[int, ...]:
    """The new blocks that must be zeroed before use.

    In a hybrid model a page may hold the bits of a state, which decode kernels that mask by multiplying turn into
    NaN. A layer with a state starts from zeros by itself; a model without states has only finite latents in its pool.
    """
    return step.new_attention_blocks if is_hybrid else ()
