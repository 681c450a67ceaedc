"""Seeded inputs of each op.

Live memory holds values. Memory without an owner holds zeros and is listed by site.

The caller poisons the entries of `unowned` in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from harness.core.errors import InputError
from harness.core.ops import latent_rank
from harness.core.shapes import CacheLayout
from harness.ops.parts import cache_layouts

NULL_BLOCK = 0
"""The block that belongs to no request: unused entries of block tables point to it."""


@dataclass(slots=True)
class Unowned:
    """Memory of an input without an owner: a view, and its site."""

    site: str
    memory: Tensor


@dataclass(slots=True)
class OpInputs:
    """Arguments of an op by the names of its table row, and their memory without an owner."""

    unowned: list[Unowned] = field(default_factory=list, kw_only=True)


@dataclass(slots=True)
class CacheInputs(OpInputs):
    """Arguments of an op with a paged cache."""

    kv_cache: Tensor = field(kw_only=True)
    layout: CacheLayout = field(kw_only=True)


def padding(x: Tensor, is_padded: Tensor) -> list[Tensor]:
    """Views of the rows of x [T, ...] that are padding, by is_padded [T] bool: one of all, if these
    are the last.
    """
    rows = is_padded.nonzero().flatten().tolist()
    first_at_end = len(x) - len(rows)
    return [x[first_at_end:]] if not rows or rows[0] == first_at_end else [x[row] for row in rows]


def checked_head_dim(rank: int, rope_dim: int) -> int:
    """D of a latent of R and E elements.

    Raises InputError where a kernel could not derive R from D.
    """
    if latent_rank(rank + rope_dim) != rank:
        raise InputError(
            f"kv_lora_rank={rank}, qk_rope_head_dim={rope_dim}: kernels get only the sum, so the"
            " rank must be a power of two and the rope part at most as large"
        )
    return rank + rope_dim


def beside(kv_cache: Tensor, layout: CacheLayout) -> list[Unowned]:
    """The memory beside the pages of kv_cache [N, P, D] of any dtype (bfloat16, uint8), which no
    request owns.
    """
    return [
        Unowned("kv.neighbor", memory)
        for memory in cache_layouts.neighbors(kv_cache, layout).values()
    ]


def types_of(kv: str) -> tuple[torch.dtype, torch.dtype, float | None]:
    """The types of a cache and of activations, and the cache's scale: an fp8 cache serves a
    bfloat16 model.
    """
    activations = torch.float32 if kv == "fp32" else torch.bfloat16
    return (
        cache_layouts.KV_DTYPES[kv],
        activations,
        cache_layouts.KV_SCALE if kv == "fp8_e4m3" else None,
    )


def randn(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Normal numbers of a shape and type, rounded from float32."""
    return torch.randn(shape, generator=generator).to(dtype)


def drawn_queries(
    shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator, *, contiguous: bool
) -> Tensor:
    """Queries of spread 2, so that softmax prefers some keys; unless contiguous, the columns of a
    wider tensor.
    """
    if contiguous:
        return 2 * randn(shape, dtype, generator)
    return (2 * randn((*shape[:-1], shape[-1] + 8), dtype, generator))[..., : shape[-1]]


def offsets(lengths: tuple[int, ...]) -> Tensor:
    """[n + 1] int32: where each of n units begins, and the end."""
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).to(torch.int32)
