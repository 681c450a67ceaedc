"""State changes of a running engine: weights reloaded, sleep and wake, experts moved, an adapter
switched.

A change happens between two steps. A request that runs and that another model serves from now on
starts over: its pages were computed with the old weights. A captured graph keeps addresses. So a
change writes into the tensors that graphs hold, or the graphs are captured again.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from harness.core.seams import seam
from harness.core.serving_params import Change
from harness.engine.engine import ReferenceEngine
from harness.engine.experts import RoutedExperts
from harness.engine.memory import CacheLayout
from harness.engine.model.mla import Adapters, MLAAttention, absorbed_parts
from harness.engine.model.transformer import CausalLM
from harness.engine.schedule.block_pool import BlockPool


@torch.no_grad()
def apply_change(engine: ReferenceEngine, change: Change, checkpoint: CausalLM) -> None:
    """Run one change.

    `checkpoint` has the weights that the engine has from now on; only reloads change them.
    """
    if change == "move_experts":
        for experts in engine.runner.paged_model.routed_experts():
            experts.move()
    elif change == "switch_adapter":
        # An adapter that no slot had before: whatever is cached for slot 1 is wrong for it.
        engine.adapters[1] = max(engine.adapters) + 1
        load_adapters(engine, engine.adapters)
        # Requests of other slots go on: their adapters are what they were.
        engine.start_over([sequence for sequence in engine.scheduler.running if sequence.slot == 1])
    elif change == "sleep":
        engine.start_over(list(engine.scheduler.running))
        scales = _sleep(engine)
        _wake(engine, checkpoint, scales)
    else:
        # Counted first: a request that starts over notes which weights serve it from now on.
        engine.num_reloads += 1
        engine.start_over(list(engine.scheduler.running))
        _load(engine, checkpoint, in_place=change == "reload")
        forget_prefixes_of_old_weights(engine.pool)
    engine.scheduler.events[change] += 1


@torch.no_grad()
def load_adapters(engine: ReferenceEngine, adapters: list[int]) -> None:
    """Write the adapter of each slot into the buffers that graphs hold.

    Slot 0 stays the base model.
    """
    for slot, adapter in enumerate(adapters):
        for layer, attention in enumerate(engine.runner.paged_model.model.mla_layers()):
            assert attention.adapters is not None
            attention.adapters.load(slot, adapter, layer)


@torch.no_grad()
def with_adapter(model: CausalLM, adapter: int) -> CausalLM:
    """A copy of `model` with the product of an adapter added to `kv_b_proj`, for the reference."""
    # The model is cached for other references, so the product goes into a copy.
    merged = copy.deepcopy(model)
    for layer, attention in enumerate(merged.mla_layers()):
        pairs = Adapters(2, attention.kv_b_proj.weight, attention.num_heads)
        pairs.load(1, adapter, layer)
        attention.kv_b_proj.weight += pairs.b[1].flatten(0, 1) @ pairs.a[1]
    return merged


@seam("reload.prefixes-kept")
def forget_prefixes_of_old_weights(pool: BlockPool) -> None:
    """Empty the prefix cache: its pages are of the old weights (vllm-project/vllm#48312)."""
    pool.flush()


@seam("sleep.prefixes-kept")
def forget_unmapped_prefixes(pool: BlockPool) -> None:
    """Empty the prefix cache: the memory of its pages is gone (vllm-project/vllm-omni#6442)."""
    pool.flush()


def _load(engine: ReferenceEngine, checkpoint: CausalLM, *, in_place: bool) -> None:
    """Take over the weights of `checkpoint`, then make again what is made of weights after
    loading.
    """
    model = engine.runner.paged_model.model
    if in_place:
        for held, loaded in zip(tensors_to_load(model), checkpoint.parameters(), strict=True):
            held.copy_(loaded)
    else:
        for parameter, loaded in zip(model.parameters(), checkpoint.parameters(), strict=True):
            # A new address, as in an engine that replaces its parameters. Graphs have to be
            # captured again.
            parameter.data = loaded.clone()
    for attention in model.mla_layers():
        _absorb_again(attention, in_place=in_place)
    for experts in engine.runner.paged_model.routed_experts():
        load_experts(experts.ranks, experts_to_load(experts), in_place=in_place)
    if not in_place:
        recapture(engine)


@seam("reload.tensors-of-start")
def tensors_to_load(model: CausalLM) -> list[Tensor]:
    """The tensors that a load in place writes: the parameters that there are now.

    A table of them that is made once holds dead ones after other tensors took their place
    (sgl-project/sglang#14158).
    """
    return [parameter.data for parameter in model.parameters()]


@seam("experts.reload-by-number")
def experts_to_load(experts: RoutedExperts) -> list[list[Tensor]]:
    """The projections of each rank, in the order of its places.

    A checkpoint has them by number, and experts may have moved since the start
    (PrimeIntellect-ai/prime-rl#3583).
    """
    return experts.placed()


def _absorb_again(attention: MLAAttention, *, in_place: bool) -> None:
    weight, scale = absorbed_parts(attention.kv_b_proj.weight)
    shape = (attention.num_heads, -1, attention.kv_lora_rank)
    if in_place:
        refresh_absorbed(attention, weight.view(shape))
        refresh_scale(attention, scale)
    else:
        attention.absorbed = weight.view(shape)
        attention.absorbed_scale = scale


@seam("reload.absorbed-rebound")
def refresh_absorbed(attention: MLAAttention, fresh: Tensor) -> None:
    """Copy the absorbed projections fresh [H, nope + V, R] float32 into the tensor that graphs hold
    (vllm-project/vllm#48251).
    """
    assert attention.absorbed is not None
    attention.absorbed.copy_(fresh)


@seam("reload.scale-of-old-weights")
def refresh_scale(attention: MLAAttention, fresh: Tensor) -> None:
    """Copy the scale fresh [1] float32 of the absorbed projections.

    It belongs to the weights that are loaded (vllm-project/vllm#41670).
    """
    assert attention.absorbed_scale is not None
    attention.absorbed_scale.copy_(fresh)


@seam("reload.experts-reallocated")
def load_experts(ranks: list[list[Tensor]], fresh: list[list[Tensor]], *, in_place: bool) -> None:
    """Give each rank its experts, `fresh` [X, ...] float32 for each projection, without the trap
    behind them.

    `ranks` [X + 1, ...] are replaced if not `in_place` (vllm-project/vllm#40390).
    """
    for held, loaded in zip(ranks, fresh, strict=True):
        for number, weight in enumerate(loaded):
            if not in_place:
                held[number] = held[number].clone()
            held[number][:-1].copy_(weight)


@seam("reload.graphs-kept")
def recapture(engine: ReferenceEngine) -> None:
    """Capture all graphs again: the weights have new addresses (NVIDIA-NeMo/RL#2895)."""
    engine.runner.capture()


def _sleep(engine: ReferenceEngine) -> tuple[float | None, float | None]:
    """Unmap the weights, the KV pool and the memory of graphs.

    Returns what the host keeps: the scales of the cache.
    """
    runner = engine.runner
    layout = engine.runner.memory.layout
    # The loader of a checkpoint does not bring them again (vllm-project/vllm#57163).
    saved = layout.kv_scale, layout.window_scale
    for tensor in (
        *runner.paged_model.tensors().values(),
        *made_with_the_pool(runner.paged_model.constants()),
    ):
        # The addresses stay valid here. Poison stands for the memory that an engine gives back.
        engine.poison.fill_(tensor, "weights.gone")
    runner.unmap()
    return saved


@seam("sleep.constants-in-kv-pool")
def made_with_the_pool(constants: list[Tensor]) -> list[Tensor]:
    """The `constants` [...] int32 of graphs, maps of experts and counters, that a sleep unmaps:
    none, as nothing restores them (vllm-project/vllm#53343).
    """
    return []


def _wake(
    engine: ReferenceEngine, checkpoint: CausalLM, scales: tuple[float | None, float | None]
) -> None:
    """Map the memory again, at the old addresses: weights from the checkpoint, adapters, an empty
    KV pool.
    """
    _load(engine, checkpoint, in_place=True)
    if engine.params.adapters:
        load_adapters(engine, adapters_to_wake(engine))
    engine.runner.map_again()
    restore_scales(engine.runner.memory.layout, *scales)
    forget_unmapped_prefixes(engine.pool)


@seam("adapter.of-start-after-wake")
def adapters_to_wake(engine: ReferenceEngine) -> list[int]:
    """The adapter in each slot after a wake: the one that was there before the sleep
    (vllm-project/vllm#53888).
    """
    return engine.adapters


@seam("sleep.scales-zeroed")
def restore_scales(layout: CacheLayout, kv_scale: float | None, window_scale: float | None) -> None:
    """Restore the scales of an fp8 cache.

    A checkpoint's loader does not bring them again (vllm-project/vllm#57163).
    """
    layout.kv_scale = kv_scale
    layout.window_scale = window_scale
