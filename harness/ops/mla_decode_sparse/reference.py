"""The reference of `mla_decode_sparse`, in float64."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from harness.ops.parts.attention import Rounding, WantedAttention, attended, dequantized
from harness.ops.parts.record_formats import decode


def expected(
    q: Tensor,
    kv_cache: Tensor,
    indices: Tensor,
    *,
    scale: float,
    kv_scale: float | None = None,
    products: str = "float32",
) -> WantedAttention:
    """Attention of each token to its own slots of the pool, in float64.

    q [T, H, D] bfloat16 or float32, kv_cache [N, P, D] as the kernel gets it, indices [T, K] int32,
    page * P + place or negative -> out [T, H, R] and lse [T, H] float64 (natural logarithm),
    defined [T] bool: a token whose indices are all negative is undefined.
    """

    def seen() -> Iterator[tuple[int, Tensor]]:
        for t in (indices >= 0).any(dim=1).nonzero().flatten().tolist():
            slots = indices[t][indices[t] >= 0].tolist()
            records = torch.stack([kv_cache[divmod(slot, kv_cache.shape[1])] for slot in slots])
            is_packed = records.dtype == torch.uint8
            yield t, decode(records, "fp8_ds_mla") if is_packed else dequantized(records, kv_scale)

    return attended(q, seen(), scale, Rounding.of(products, q, kv_cache.dtype))
