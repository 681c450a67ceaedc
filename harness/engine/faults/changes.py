"""Faults of state changes: old weights that graphs keep, memory that nothing restores, pages of
another model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.engine.experts import RoutedExperts, look_up_places
from harness.engine.memory import CacheLayout
from harness.engine.model.mla import Adapters, MLAAttention
from harness.engine.schedule.sequence import Sequence
from harness.memory.graph.launch import ACTIVE, launch


def rebind_absorbed(attention: MLAAttention, fresh: Tensor) -> None:
    """Keep the new tensor [H, nope + V, R] (vllm-project/vllm#48251)."""
    attention.absorbed = fresh


def experts_in_new_tensors(
    ranks: list[list[Tensor]], fresh: list[list[Tensor]], *, in_place: bool
) -> None:
    """Put the experts [X, ...] of each rank into new tensors in every reload
    (vllm-project/vllm#40390).
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
    """Keep the new map [X] int32 (sgl-project/sglang#4957)."""
    experts.place_of = places


def places_if_eager(ids: Tensor, place_of: Tensor) -> Tensor:
    """Look up no places of ids [T, k] in a capture (sgl-project/sglang#18213)."""
    placed: Tensor = ids if ACTIVE.get() is not None else launch(look_up_places, ids, place_of)
    return placed


def no_pair(adapters: Adapters, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Add nothing: zeros [T, K, R] and [T, H, nope + V, K] (vllm-project/vllm#48974)."""
    a, b = adapters.a[slots], adapters.b[slots]
    return torch.zeros_like(a), torch.zeros_like(b)


def slot_as_salt(sequence: Sequence) -> int:
    """Tell prefixes apart by the slot (vllm-project/vllm#42125)."""
    return sequence.slot
