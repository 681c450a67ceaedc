"""Faults of state changes: old weights that graphs keep, memory that nothing restores, pages of
another model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.engine.engine import ReferenceEngine
from harness.engine.experts import RoutedExperts, look_up_places
from harness.engine.memory import CacheLayout
from harness.engine.model.mla import Adapters, MLAAttention
from harness.engine.model.transformer import CausalLM
from harness.engine.schedule.sequence import Sequence
from harness.memory.graph.launch import ACTIVE, launch


def rebind_absorbed(attention: MLAAttention, fresh: Tensor) -> None:
    """Keep the new tensor fresh [H, nope + V, R] float32 (vllm-project/vllm#48251)."""
    attention.absorbed = fresh


def experts_in_new_tensors(
    ranks: list[list[Tensor]], fresh: list[list[Tensor]], *, in_place: bool
) -> None:
    """Put the experts of each rank, `fresh` [X, ...] float32, into new tensors in every reload
    (vllm-project/vllm#40390).

    `ranks` [X + 1, ...] are those that graphs hold.
    """
    for held, loaded in zip(ranks, fresh, strict=True):
        held[:] = [
            torch.cat((weight, tensor[-1:])) for weight, tensor in zip(loaded, held, strict=True)
        ]


def zero_scales(layout: CacheLayout, kv_scale: float | None, window_scale: float | None) -> None:
    """Find zeros where the scales were (vllm-project/vllm#57163)."""
    layout.kv_scale, layout.window_scale = (
        None if scale is None else 0.0 for scale in (kv_scale, window_scale)
    )


def rebind_places(experts: RoutedExperts, places: Tensor) -> None:
    """Keep the new map `places` [X] int32 (sgl-project/sglang#4957)."""
    experts.place_of = places


def places_if_eager(ids: Tensor, place_of: Tensor) -> Tensor:
    """Look up no places of ids [T, k] int32 by place_of [X] int32 in a capture
    (sgl-project/sglang#18213).
    """
    placed: Tensor = ids if ACTIVE.get() is not None else launch(look_up_places, ids, place_of)
    return placed


def no_pair(adapters: Adapters, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Add nothing for the adapters slots [T] int64: zeros [T, K, R] and [T, H, nope + V, K] float32
    (vllm-project/vllm#48974).
    """
    a = adapters.a[slots]
    b = adapters.b[slots]
    return torch.zeros_like(a), torch.zeros_like(b)


def slot_as_salt(sequence: Sequence) -> int:
    """Tell prefixes apart by the slot (vllm-project/vllm#42125)."""
    return sequence.slot


def tensors_of_first_load(model: CausalLM) -> list[Tensor]:
    """Make the table at the first load, and keep it (sgl-project/sglang#14158)."""
    # A fault is a function, so what it keeps lies beside the fields of the object that it is given.
    kept: list[Tensor] = vars(model).setdefault(
        "kept", [parameter.data for parameter in model.parameters()]
    )
    return kept


def experts_by_number(experts: RoutedExperts) -> list[list[Tensor]]:
    """Give each rank the experts that it had at the start (PrimeIntellect-ai/prime-rl#3583)."""
    moved = experts.expert_at
    experts.expert_at = torch.arange(len(moved), device=moved.device)
    by_number = experts.placed()
    experts.expert_at = moved
    return by_number


def adapters_of_start(engine: ReferenceEngine) -> list[int]:
    """Load the adapter with the number of each slot (vllm-project/vllm#53888)."""
    return list(range(len(engine.adapters)))
