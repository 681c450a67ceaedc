"""The reference of `mla_decode`, in float64."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from harness.ops.parts.attention import Attention, Rounding, attended, dequantized, gather_latents


def expected(
    q: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    kv_scale: float | None = None,
    window: int | None = None,
    products: str = "float32",
) -> Attention:
    """out [B * S, H, R], lse [B * S, H], defined [B * S]: a query token without keys is
    undefined.
    """
    num_query_tokens = q.shape[1]

    def seen() -> Iterator[tuple[int, Tensor]]:
        for b, length in enumerate(seq_lens.tolist()):
            keys = dequantized(gather_latents(kv_cache, block_table[b], length), kv_scale)
            for s, visible in enumerate(range(length - num_query_tokens + 1, length + 1)):
                if visible > 0:
                    yield (
                        b * num_query_tokens + s,
                        keys[0 if window is None else max(visible - window, 0) : visible],
                    )

    return attended(q.flatten(0, 1), seen(), scale, Rounding.of(products, q, kv_cache.dtype))
