"""The calls of public kernels of `context_attention`, adapted to the op's.

No torch is imported here before a call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]


def varlen(function: Function) -> Function:
    """`f(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=,
    causal=)`, as `flash_attn_varlen_func` of Dao-AILab/flash-attention with its lse.

    q [T, H, E'], k [C, H, E'], v [C, H, V], cu_seqlens [B + 1] int32. Returns out [T, H, V] and lse
    [H, T], a natural logarithm. The op has no causal mask, so `causal` is False.
    """

    def adapted(
        q: Any, k: Any, v: Any, query_start_loc: Any, chunk_start_loc: Any, *, scale: float
    ) -> Any:
        longest = (int(starts.diff().max()) for starts in (query_start_loc, chunk_start_loc))
        return function(
            q, k, v, query_start_loc, chunk_start_loc, *longest, softmax_scale=scale, causal=False
        )

    adapted.__name__ = adapted.__qualname__ = str(getattr(function, "__qualname__", "kernel"))
    adapted.__doc__ = function.__doc__
    return adapted


STYLES: dict[str, Callable[[Function], Function]] = {"varlen": varlen}
"""Name of a style -> its adapter."""
