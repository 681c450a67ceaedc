"""The bytes of the block pool, and the views that each layer has of them.

A block is a run of bytes in each slot. An MLA layer reads a block of its slot as a page of latents,
a linear-attention layer as its float32 state. Window layers may store another type, and sparse
layers keep index keys behind the latents. Layers of one group have different slots, layers of
different groups share slots, as in a hybrid allocator. So a block can change its type with its
owner: one in five hundred float32 values is NaN as a bfloat16 latent (vllm-project/vllm#43961).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from harness.core.params import KvType
from harness.core.seams import seam
from harness.engine.schedule.block_pool import CacheGroup, Group
from harness.engine.schedule.config import KV_SCALE, PAGE_SIZE, EngineModelConfig, LayerType
from harness.engine.schedule.sequence import Step

KV_DTYPES: dict[KvType, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
}
GROUP_OF: dict[LayerType, Group] = {
    "mla": "attention",
    "sparse": "attention",
    "window": "window",
    "kda": "state",
}
"""The layers of a group share a block table. All groups share the pool."""
NOT_LOADED = torch.finfo(torch.float32).min
"""The scale of an fp8 cache before a checkpoint is loaded. No real scale has this value."""
# A multiple of the size of every element, so that a block has a view in each type.
_ALIGNMENT = 16


class CacheLayout:
    """The place of each layer's part of a block, for a model.

    A block holds a page of any group or a state.

    `slot_of_layer[i]` is the slot of layer i. Full and sparse layers have `kv_dtype` and
    `kv_scale`, window layers `window_dtype` and `window_scale`. `index_dim` is the width of an
    index key, 0 without sparse layers. `num_drafters` more layers with full attention come behind
    the model's.
    """

    def __init__(
        self,
        config: EngineModelConfig,
        kv: KvType,
        num_blocks: int,
        window_kv: KvType | None = None,
        num_drafters: int = 0,
    ) -> None:
        window_kv = window_kv or kv
        self.num_blocks = num_blocks
        of_model = tuple(GROUP_OF[kind] for kind in config.layer_types)
        self.group_of_layer = groups = of_model + (GROUP_OF["mla"],) * num_drafters
        # The n-th layer of each group has slot n, so layers of different groups share a slot.
        self.slot_of_layer = tuple(
            groups[:layer].count(group) for layer, group in enumerate(groups)
        )
        self.num_slots = max(self.slot_of_layer) + 1
        self.kv_dtype = KV_DTYPES[kv]
        self.window_dtype = KV_DTYPES[window_kv]
        self.kv_scale = settled(NOT_LOADED) if kv == "fp8_e4m3" else None
        self.window_scale = settled(NOT_LOADED) if window_kv == "fp8_e4m3" else None
        self.latent_dim = config.latent_dim
        self.index_dim = config.index_head_dim if "sparse" in config.layer_types else 0
        width = config.kda_num_heads * config.kda_head_dim
        self.conv_shape = (3 * width, config.conv_kernel_size - 1)
        self.ssm_shape = (config.kda_num_heads, config.kda_head_dim, config.kda_head_dim)
        # One size for all, as a block may go from a layer of one kind to a layer of another.
        needed = max(
            PAGE_SIZE
            * (self.latent_dim * self.kv_dtype.itemsize + self.index_dim * torch.float32.itemsize),
            PAGE_SIZE * self.latent_dim * self.window_dtype.itemsize if "window" in groups else 0,
            (math.prod(self.ssm_shape) + math.prod(self.conv_shape)) * torch.float32.itemsize,
        )
        self.block_bytes = -(-needed // _ALIGNMENT) * _ALIGNMENT

    @property
    def groups(self) -> tuple[CacheGroup, ...]:
        dtypes = {
            "attention": str(self.kv_dtype),
            "window": str(self.window_dtype),
            "state": "state",
        }
        return tuple(
            CacheGroup(group, dtypes[group]) for group in dict.fromkeys(self.group_of_layer)
        )

    def scale_of(self, layer: int) -> float | None:
        """The scale of a layer's cache; None without one."""
        return self.window_scale if self.group_of_layer[layer] == "window" else self.kv_scale


class PagedMemory:
    """The pool's bytes, `data` [slots, N, block_bytes] uint8, and typed views of them."""

    def __init__(
        self, layout: CacheLayout, data: Tensor | None = None, device: torch.device | str = "cpu"
    ) -> None:
        self.layout = layout
        shape = (layout.num_slots, layout.num_blocks, layout.block_bytes)
        self.data = torch.zeros(shape, dtype=torch.uint8, device=device) if data is None else data
        self._as_latents = self.data.view(layout.kv_dtype)
        self._as_window = self.data.view(layout.window_dtype)
        self._as_floats = self.data.view(torch.float32)

    def typed(self, group: Group) -> Tensor:
        """All bytes in the type of the latents of `group`, [slots, N, elements]."""
        return self._as_window if group == "window" else self._as_latents

    def latents(self, layer: int) -> Tensor:
        """The paged cache [N, P, D] of an MLA layer in the type of its group.

        Its pages are not contiguous.
        """
        typed = self.typed(self.layout.group_of_layer[layer])
        return self._shaped(typed, layer, 0, (PAGE_SIZE, self.layout.latent_dim))

    def index_keys(self, layer: int) -> Tensor:
        """The paged index keys [N, P, I] float32 of a sparse layer, behind a block's latents."""
        start = (
            PAGE_SIZE
            * self.layout.latent_dim
            * self.layout.kv_dtype.itemsize
            // torch.float32.itemsize
        )
        return self._shaped(self._as_floats, layer, start, (PAGE_SIZE, self.layout.index_dim))

    def ssm_states(self, layer: int) -> Tensor:
        """The recurrent states [N, H, dk, dv] float32 of a linear-attention layer."""
        return self._shaped(self._as_floats, layer, 0, self.layout.ssm_shape)

    def conv_states(self, layer: int) -> Tensor:
        """The convolution states [N, 3P, W - 1] float32 of a linear-attention layer, behind the
        recurrent state.
        """
        return self._shaped(
            self._as_floats, layer, math.prod(self.layout.ssm_shape), self.layout.conv_shape
        )

    def _shaped(self, typed: Tensor, layer: int, start: int, shape: tuple[int, ...]) -> Tensor:
        """The elements [N, *shape] from `start` on of each block of a layer's slot."""
        blocks = typed[self.layout.slot_of_layer[layer]]
        return blocks[:, start : start + math.prod(shape)].view(-1, *shape)

    def block(self, block: int) -> Tensor:
        """A copy of one block's bytes [slots, block_bytes]."""
        return self.data[:, block].clone()

    def zero(self, blocks: Iterable[int]) -> None:
        """Zero the bytes of `blocks`."""
        self.data[:, list(blocks)] = 0


@seam("kv.runner-ignores-zero-list")
def zero_listed_blocks(memory: PagedMemory, step: Step) -> None:
    """Zero the blocks that the scheduler lists, before any read.

    A rewritten runner ignored the list (vllm-project/vllm#43990).
    """
    memory.zero(step.blocks_to_zero)


@seam("scale.sentinel-never-replaced")
def settled(loaded: float) -> float:
    """The scale of an fp8 cache after loading: the default if the checkpoint has none.

    A sentinel left in place would divide every latent to 0.
    """
    return KV_SCALE if loaded == NOT_LOADED else loaded
