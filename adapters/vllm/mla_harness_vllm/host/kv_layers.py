"""The layers of a tiny model with MLA, alone or with a sidecar. vLLM plans their groups, and their
memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm import config as configs
from vllm.v1.kv_cache_interface import MambaSpec, MLAAttentionSpec, SlidingWindowSpec

from harness.api import Refused, owner_records, unsent
from mla_harness_vllm.releases import (
    CONNECTED_STATES,
    KV_PLANNING,
    OFFLOADING_SCHEDULER,
    PAGES_OF_STATES,
    SHARED_MEMORY,
)

BLOCK = 16
WIDTH = 24
STATE = ((3, 8), torch.bfloat16), ((2, 4, 8), torch.float32)
"""The parts of a recurrent state: of the convolution, and of the recurrence."""
HAS_PAGES_OF_STATES = PAGES_OF_STATES.is_module()


@dataclass(frozen=True, slots=True)
class Layer:
    """What a layer keeps: records of `width` bytes, one for each token, or one state for each
    block.
    """

    group: str
    """Its kind of data: latent, index, window or state."""
    number: int
    spec: Any
    width: int

    def wanted(self, sequence: int, start: int, end: int) -> Tensor:
        """The records [end - start, width] of the tokens from `start` to `end` of a sequence."""
        return owner_records(self.group, self.number, sequence, end, self.width)[start:]

    def typed(self, memory: Tensor) -> Any:
        """Memory as vLLM's runner gives it to a connector: memory [blocks, bytes] uint8 -> a tensor
        of the layer's dtype, or a list of the parts of a state.
        """
        if self.group != "state":
            return memory.view(self.spec.dtype).view(len(memory), BLOCK, -1)
        if HAS_PAGES_OF_STATES:
            return memory.view(torch.int8).view(len(memory), 1, 1, -1)
        parts = []
        start = 0
        for shape, dtype in STATE:
            end = start + torch.Size(shape).numel() * dtype.itemsize
            parts.append(
                memory.view(dtype)[:, start // dtype.itemsize : end // dtype.itemsize].view(
                    -1, *shape
                )
            )
            start = end
        return parts


def layers_of(sidecar: str, window: int) -> dict[str, Layer]:
    """Two layers with latents, the second with a window, with index keys beside each, or with a
    state in its place.
    """
    known = {"block_size": BLOCK, "num_kv_heads": 1}
    latent = MLAAttentionSpec(
        **known, head_size=WIDTH, dtype=torch.bfloat16, cache_dtype_str="auto"
    )
    second: tuple[str, Any, int] = ("latent", latent, 2 * WIDTH)
    index = {}
    if sidecar == "window":
        spec = SlidingWindowSpec(
            **known, head_size=WIDTH // 2, dtype=torch.bfloat16, sliding_window=window
        )
        second = ("window", spec, 2 * WIDTH)
    elif sidecar == "state":
        if not CONNECTED_STATES.of(OFFLOADING_SCHEDULER.module()):
            raise Refused("this release moves no recurrent states")
        shapes, dtypes = zip(*STATE, strict=True)
        padded = {"mamba_cache_mode": "align", "page_size_padded": latent.page_size_bytes}
        width = sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in STATE)
        second = (
            "state",
            MambaSpec(block_size=BLOCK, shapes=shapes, dtypes=dtypes, **padded),
            width,
        )
    elif sidecar == "index":
        keys = MLAAttentionSpec(**known, head_size=WIDTH - 4, dtype=torch.uint8)
        index = {
            f"model.layers.{number}.indexer": Layer("index", number, keys, WIDTH - 4)
            for number in range(2)
        }
    layers = {"model.layers.0.attn": Layer("latent", 0, latent, 2 * WIDTH)}
    return layers | {"model.layers.1.attn": Layer(second[0], 1, *second[1:])} | index


def planned(vllm_config: Any, layers: dict[str, Layer]) -> Any:
    """The groups and the memory of layers, as a worker of this release has them."""
    planning = KV_PLANNING.module()
    with configs.set_current_vllm_config(vllm_config):
        groups = planning.get_kv_cache_groups(
            vllm_config, {name: layer.spec for name, layer in layers.items()}
        )
        return planning.get_kv_cache_config_from_groups(vllm_config, groups, 1 << 24)


def memory_of(kv_config: Any) -> dict[str, Tensor]:
    """The memory [blocks, bytes] uint8 of each layer, with nothing in it.

    Layers of several groups can share one.
    """
    found: dict[str, Tensor] = {}
    num_blocks = kv_config.num_blocks
    whole = unsent(max(one.size for one in kv_config.kv_cache_tensors)).clone()
    for tensor in kv_config.kv_cache_tensors:
        if SHARED_MEMORY.of(tensor):
            memory = unsent(tensor.size).clone().view(num_blocks, -1)
            found |= dict.fromkeys(tensor.shared_by, memory)
            continue
        for place, name in enumerate(tensor.layers):
            start = tensor.offset + place * tensor.layer_stride
            found[name] = whole[start : start + num_blocks * tensor.block_stride].view(
                num_blocks, -1
            )
    return found
