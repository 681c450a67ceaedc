"""The calls of public kernels of `mla_decode`, adapted to the op's.

A kernel that is written for another call declares it:

    @kernel(op="mla_decode", name="mine", style="flash_mla")

Each style takes the function and returns one with the arguments of the op. What a style cannot
express, such as a window, its kernel does not get. No torch is imported here before a call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

Function = Callable[..., Any]
LN_2 = math.log(2)


def flash_mla(function: Function) -> Function:
    """`f(q, k_cache, block_table, cache_seqlens, head_dim_v, softmax_scale=, causal=)`, as
    `flash_mla_with_kvcache` of deepseek-ai/FlashMLA without its plan.

    k_cache [N, P, 1, D]. Returns out [B, S, H, R] and lse [B, H, S], a natural logarithm.
    """

    def call(
        q: Any, kv_cache: Any, block_table: Any, seq_lens: Any, *, scale: float, **_: Any
    ) -> Any:
        rank = _rank(q)
        k_cache = kv_cache[:, :, None]
        return function(q, k_cache, block_table, seq_lens, rank, softmax_scale=scale, causal=True)

    return _named(call, function)


def split_cache(function: Function) -> Function:
    """`f(q_nope, q_pe, ckv_cache, kpe_cache, block_table, seq_lens, scale)`, with latents and rope
    keys in two caches [N, P, R] and [N, P, E], contiguous.

    Returns out [B, S, H, R] and lse [B, H, S], a natural logarithm.
    """

    def call(
        q: Any, kv_cache: Any, block_table: Any, seq_lens: Any, *, scale: float, **_: Any
    ) -> Any:
        rank = _rank(q)
        queries = q[..., :rank].contiguous(), q[..., rank:].contiguous()
        caches = kv_cache[..., :rank].contiguous(), kv_cache[..., rank:].contiguous()
        return function(*queries, *caches, block_table, seq_lens, scale)

    return _named(call, function)


def flashinfer(function: Function) -> Function:
    """A class with `plan` and `run`, as flashinfer-ai/flashinfer's `BatchMLAPagedAttentionWrapper`.

    `plan(qo_indptr, kv_indptr, kv_indices, kv_len_arr, num_heads, head_dim_ckv, head_dim_kpe,
    page_size, causal, sm_scale, q_data_type, kv_data_type)`; `run(q_nope, q_pe, ckv_cache,
    kpe_cache, return_lse=True)` returns out [T, H, R] and lse [T, H], a logarithm to base 2.
    """

    def call(
        q: Any, kv_cache: Any, block_table: Any, seq_lens: Any, *, scale: float, **_: Any
    ) -> Any:
        import torch

        batch, num_tokens, num_heads, width = q.shape
        rank = _rank(q)
        page_size = kv_cache.shape[1]
        counts = (seq_lens + page_size - 1) // page_size
        first = torch.zeros(1, dtype=torch.int32, device=q.device)
        kv_indptr = torch.cat((first, counts.cumsum(0).to(torch.int32)))
        qo_indptr = torch.arange(batch + 1, dtype=torch.int32, device=q.device) * num_tokens
        columns = torch.arange(block_table.shape[1], device=q.device)
        # The wrapper takes the pages of all requests in one list, without padding.
        kv_indices = block_table[columns < counts[:, None]]
        # A new one, so that no plan of an earlier call is left.
        wrapper = function()
        sizes = (num_heads, rank, width - rank, page_size)
        wrapper.plan(
            qo_indptr,
            kv_indptr,
            kv_indices,
            seq_lens,
            *sizes,
            True,
            scale,
            q.dtype,
            kv_cache.dtype,
        )
        tokens = q.flatten(0, 1)
        out, lse = wrapper.run(
            tokens[..., :rank],
            tokens[..., rank:],
            kv_cache[..., :rank],
            kv_cache[..., rank:],
            return_lse=True,
        )
        lse = lse.view(batch, num_tokens, num_heads).transpose(1, 2) * LN_2
        return out.view(batch, num_tokens, num_heads, rank), lse

    return _named(call, function)


def contiguous_cache(function: Function) -> Function:
    """`f(q, kv, seq_lens, scale)`, with the keys of each request in a row: kv [B, L, D], where rows
    past `seq_lens` may hold anything.

    Returns out [B, S, H, R] and lse [B, H, S], a natural logarithm.
    """

    def call(
        q: Any, kv_cache: Any, block_table: Any, seq_lens: Any, *, scale: float, **_: Any
    ) -> Any:
        import torch

        columns = torch.arange(block_table.shape[1], device=q.device)
        page_size = kv_cache.shape[1]
        is_used = columns < ((seq_lens + page_size - 1) // page_size)[:, None]
        # Padded entries may name no page at all. They read page 0, which belongs to no request.
        pages = torch.where(is_used, block_table, 0).long()
        return function(q, kv_cache[pages].flatten(1, 2), seq_lens, scale)

    return _named(call, function)


def one_token(function: Function) -> Function:
    """`f(q, kv_cache, block_table, seq_lens, scale)` with one query a request: q [B, H, D].

    Returns out [B, H, R] and lse [B, H], a natural logarithm. Declare `query_len: 1` in `shapes`.
    """

    def call(
        q: Any, kv_cache: Any, block_table: Any, seq_lens: Any, *, scale: float, **_: Any
    ) -> Any:
        out, lse = function(q[:, 0], kv_cache, block_table, seq_lens, scale)
        return out[:, None], lse[:, :, None]

    return _named(call, function)


STYLES: dict[str, Callable[[Function], Function]] = {
    "flash_mla": flash_mla,
    "split_cache": split_cache,
    "flashinfer": flashinfer,
    "contiguous_cache": contiguous_cache,
    "one_token": one_token,
}
"""Name of a style -> its adapter."""


def _rank(q: Any) -> int:
    """R of latents of D = R + E elements: the largest power of two below D."""
    width: int = q.shape[-1]
    return 1 << ((width - 1).bit_length() - 1)


def _named(call: Function, function: Function) -> Function:
    """`call` with the name and the docstring of `function`, and the arguments of the op."""

    @wraps(call)
    def adapted(
        q: Any,
        kv_cache: Any,
        block_table: Any,
        seq_lens: Any,
        *,
        scale: float,
        kv_scale: float | None = None,
        metadata: Any = None,
    ) -> Any:
        return call(q, kv_cache, block_table, seq_lens, scale=scale)

    # `inspect.signature` follows it, and would show the arguments of `call` in place of the op's.
    del adapted.__wrapped__
    adapted.__name__ = adapted.__qualname__ = str(getattr(function, "__qualname__", "kernel"))
    adapted.__doc__ = function.__doc__
    return adapted
