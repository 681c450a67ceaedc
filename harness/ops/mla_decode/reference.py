"""The reference of `mla_decode`, in float64."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from harness.ops.parts.attention import (
    Rounding,
    WantedAttention,
    attended,
    dequantized,
    gather_latents,
)


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
) -> WantedAttention:
    """Attention of the last S tokens of each request to its own past, in float64.

    q [B, S, H, D] bfloat16 or float32, kv_cache [N, 64, D] float32, bfloat16 or float8_e4m3fn
    (times `kv_scale`), block_table [B, M] int32, seq_lens [B] int32, in tokens -> out [B * S, H, R]
    and lse [B * S, H] float64 (natural logarithm), defined [B * S] bool: a query token without keys
    is undefined.

    `products` is the type in which the judged kernel multiplies; the result says what that may
    move.
    """
    num_query_tokens = q.shape[1]

    def seen() -> Iterator[tuple[int, Tensor]]:
        for b, length in enumerate(seq_lens.tolist()):
            # One request at a time, as keys in float64 take much memory.
            keys = dequantized(gather_latents(kv_cache, block_table[b], length), kv_scale)
            for s, visible in enumerate(range(length - num_query_tokens + 1, length + 1)):
                # A query token of a padded request sees nothing, and its row is undefined.
                if visible > 0:
                    yield (
                        b * num_query_tokens + s,
                        keys[0 if window is None else max(visible - window, 0) : visible],
                    )

    return attended(q.flatten(0, 1), seen(), scale, Rounding.of(products, q, kv_cache.dtype))
