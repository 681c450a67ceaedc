"""The reference of `write_kv`: what a cache stores of latents."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.ops.parts.attention import E4M3_MAX


def expected(
    kv_c: Tensor, k_pe: Tensor, cache_dtype: torch.dtype, kv_scale: float | None
) -> Tensor:
    """The rows [T, D] float64 that `write_kv` should store, before rounding to the cache's type.

    kv_c [T, R] and k_pe [T, E] are bfloat16 or float32; an fp8 cache holds value / `kv_scale`,
    saturated at 448.
    """
    rows = torch.cat((kv_c, k_pe), dim=-1).double()
    if cache_dtype != torch.float8_e4m3fn:
        return rows
    return (rows / (1.0 if kv_scale is None else kv_scale)).clamp(-E4M3_MAX, E4M3_MAX)
