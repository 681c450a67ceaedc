"""Run with a release on the path: the plug-in's poison of new blocks, in caches that vLLM itself
lays out on a CPU.

For 0.29 and later, whose `allocate_kv_cache` gives every layer a view of one allocation. Prints a
line of JSON: by layout, the pages of two layers that are filled whole, and whether anything else
is.
"""

from __future__ import annotations

import importlib
import json
from types import SimpleNamespace
from typing import Any

import torch
from vllm.model_executor.layers.attention.mla_attention import MLAAttention
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
from vllm.v1.kv_cache_interface import (
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    MLAAttentionSpec,
)
from vllm.v1.worker.utils import allocate_kv_cache

from mla_harness_adapters.plan import ServePoison
from mla_harness_vllm.serve.hooks import StepPoison

NUM_BLOCKS, BLOCK, LATENT = 8, 128, 576
LAYERS = ["model.layers.0.attn", "model.layers.1.attn"]


def caches(layout: str, kernel_block: int) -> tuple[Any, dict[str, torch.Tensor]]:
    """A runner of two layers, each with its cache [N, P, D] as its own `bind_kv_cache` leaves
    it.
    """
    spec = MLAAttentionSpec(
        block_size=BLOCK, num_kv_heads=1, head_size=LATENT, dtype=torch.bfloat16
    )
    page = spec.page_size_bytes
    # Each layer's blocks together, or each block's layers.
    layer_stride, block_stride = (
        (page * NUM_BLOCKS, page) if layout == "LBNHC" else (page, page * len(LAYERS))
    )
    placed = KVCacheTensor(
        size=page * NUM_BLOCKS * len(LAYERS),
        layers=LAYERS,
        layer_stride=layer_stride,
        block_stride=block_stride,
    )
    groups = [KVCacheGroupSpec(LAYERS, spec)]
    config = KVCacheConfig(num_blocks=NUM_BLOCKS, kv_cache_tensors=[placed], kv_cache_groups=groups)
    names = importlib.import_module(MLAAttentionSpec.__module__).KVCacheLayout
    views = allocate_kv_cache(config, torch.device("cpu"), names[layout], [kernel_block])
    layers: dict[str, Any] = {}
    for name, view in views.items():
        layer = SimpleNamespace(
            _vllm_config=SimpleNamespace(kernel_config=SimpleNamespace(enable_jit_warmup=False))
        )
        MLAAttention.bind_kv_cache(layer, view)
        layers[name] = layer
    compilation = SimpleNamespace(static_forward_context=layers)
    runner = SimpleNamespace(
        kv_cache_config=config, vllm_config=SimpleNamespace(compilation_config=compilation)
    )
    return runner, {name: layer.kv_cache for name, layer in layers.items()}


def step() -> SchedulerOutput:
    """A new request with two blocks of which the first was computed before: block 5 is new."""
    output = SchedulerOutput.make_empty()
    fields: dict[str, Any] = {"prompt_token_ids": None, "mm_features": [], "sampling_params": None}
    request = NewRequestData(
        req_id="a",
        pooling_params=None,
        block_ids=([3, 5],),
        num_computed_tokens=BLOCK,
        lora_request=None,
        **fields,
    )
    output.scheduled_new_reqs = [request]
    output.num_scheduled_tokens = {"a": 20}
    output.total_num_scheduled_tokens = 20
    return output


def main() -> None:
    """Both layouts; kernel blocks of half the scheduler's where that is allowed."""
    told = {}
    for layout, kernel_block in (("LBNHC", BLOCK // 2), ("BLNHC", BLOCK)):
        runner, views = caches(layout, kernel_block)
        StepPoison(ServePoison(("kv.new",)))(runner, step())
        whole = [
            view.isnan().all(dim=2).all(dim=1).nonzero().flatten().tolist()
            for view in views.values()
        ]
        rest = sum(int(view.isnan().any(dim=2).any(dim=1).sum()) for view in views.values())
        told[layout] = {"whole": whole, "touched": rest}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
