"""The calls of public kernels of `mla_decode`, adapted to the op's.

A kernel that is written for another call declares it:

    @kernel(op="mla_decode", name="mine", style="flash_mla")

Each style takes the function and returns one with the arguments of the op. What a style cannot
express, such as a window, its kernel does not get. No torch is imported here before a call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from harness.kernels.adapters import LN_2

Function = Callable[..., Any]
NUM_SPLITS = 4
"""Parts that a kernel of an engine cuts the keys of a row into."""


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


def vllm_decode(function: Function) -> Function:
    """`f(q, k_buffer, v_buffer, o, lse, req_to_token, b_seq_len, attn_logits, num_kv_splits,
    sm_scale, page_size)`, as `decode_attention_fwd` of vllm-project/vllm's Triton decode.

    q [T, H, D], k_buffer [N, P, 1, D], v_buffer its first R elements, attn_logits [T, H,
    num_kv_splits, R + 1] float32. It writes o [T, H, R] and lse [T, H], a natural logarithm. A row
    is one query token: each of S tokens becomes a request that ends at this token.
    """

    def call(
        q: Any, kv_cache: Any, block_table: Any, seq_lens: Any, *, scale: float, **_: Any
    ) -> Any:
        import torch

        batch, num_tokens, num_heads, _ = q.shape
        rank = _rank(q)
        tokens, tables, lengths = _token_rows(q, block_table, seq_lens)
        out = torch.empty(*tokens.shape[:2], rank, dtype=q.dtype, device=q.device)
        lse = torch.empty(*tokens.shape[:2], dtype=torch.float32, device=q.device)
        partial = torch.empty(
            *tokens.shape[:2], NUM_SPLITS, rank + 1, dtype=torch.float32, device=q.device
        )
        keys = kv_cache[:, :, None]
        function(
            tokens,
            keys,
            keys[..., :rank],
            out,
            lse,
            tables,
            lengths,
            partial,
            NUM_SPLITS,
            scale,
            kv_cache.shape[1],
        )
        lse = lse.view(batch, num_tokens, num_heads).transpose(1, 2)
        return out.view(batch, num_tokens, num_heads, rank), lse

    return _named(call, function)


def sglang_decode(function: Function) -> Function:
    """`f(q, k_buffer, v_buffer, o, kv_indptr, kv_indices, attn_logits, attn_lse, num_kv_splits,
    max_kv_splits, sm_scale)`, as `decode_attention_fwd` of sgl-project/sglang's Triton backend.

    q [T, H, D], k_buffer [N * P, 1, D] by slots, attn_logits [T, H, max_kv_splits, R] and attn_lse
    [T, H, max_kv_splits] float32. It writes o [T, H, R] and gives no lse: declare
    `gives_lse=False`. A row is one query token, as in `vllm_decode`.
    """

    def call(
        q: Any, kv_cache: Any, block_table: Any, seq_lens: Any, *, scale: float, **_: Any
    ) -> Any:
        import torch

        rank = _rank(q)
        tokens, tables, lengths = _token_rows(q, block_table, seq_lens)
        starts, slots = _slots(tables, lengths, kv_cache.shape[1])
        shape = (*tokens.shape[:2], NUM_SPLITS)
        out = torch.empty(*tokens.shape[:2], rank, dtype=q.dtype, device=q.device)
        partial = torch.empty(*shape, rank, dtype=torch.float32, device=q.device)
        partial_lse = torch.empty(*shape, dtype=torch.float32, device=q.device)
        splits = torch.full((len(tokens),), NUM_SPLITS, dtype=torch.int32, device=q.device)
        keys = kv_cache.reshape(-1, 1, q.shape[-1])
        function(
            tokens,
            keys,
            keys[..., :rank],
            out,
            starts,
            slots,
            partial,
            partial_lse,
            splits,
            NUM_SPLITS,
            scale,
        )
        return out.view(*q.shape[:3], rank)

    return _named(call, function)


def _trace(has_queries: bool, page_size: int) -> Callable[[Function], Function]:
    """The style of a Definition of flashinfer-ai/flashinfer-bench: `mla_paged_decode_*` or
    `mla_paged_prefill_causal_*`, with pages of 1 or 64 slots.

    `run(q_nope, q_pe, ckv_cache, kpe_cache, [qo_indptr,] kv_indptr, kv_indices, sm_scale)` with
    q_nope [T, H, R], caches [N, page_size, R] and [N, page_size, E]. Returns output [T, H, R] and
    lse [T, H], a logarithm to base 2.
    """

    def style(function: Function) -> Function:
        def call(
            q: Any, kv_cache: Any, block_table: Any, seq_lens: Any, *, scale: float, **_: Any
        ) -> Any:
            import torch

            if page_size > 1 and kv_cache.shape[1] != page_size:
                raise _refused(f"the definition has pages of {page_size} slots")
            if page_size > 1 and bool((seq_lens % page_size).any()):
                raise _refused(
                    "the definition has pages and no lengths, so each request must fill its pages"
                )
            batch, num_tokens, num_heads, width = q.shape
            rank = _rank(q)
            counts = seq_lens // page_size
            first = torch.zeros(1, dtype=torch.int32, device=q.device)
            kv_indptr = torch.cat((first, counts.cumsum(0).to(torch.int32)))
            columns = torch.arange(block_table.shape[1], device=q.device)
            if page_size == 1:
                kv_indices = _slots(block_table, seq_lens, kv_cache.shape[1])[1].to(torch.int32)
            else:
                kv_indices = block_table[columns < counts[:, None]]
            qo_indptr = torch.arange(batch + 1, dtype=torch.int32, device=q.device) * num_tokens
            tokens = q.flatten(0, 1)
            caches = kv_cache.reshape(-1, page_size, width)
            out, lse = function(
                tokens[..., :rank].contiguous(),
                tokens[..., rank:].contiguous(),
                caches[..., :rank].contiguous(),
                caches[..., rank:].contiguous(),
                *((qo_indptr,) if has_queries else ()),
                kv_indptr,
                kv_indices,
                scale,
            )
            lse = lse.view(batch, num_tokens, num_heads).transpose(1, 2) * LN_2
            return out.view(batch, num_tokens, num_heads, rank), lse

        return _named(call, function)

    return style


STYLES: dict[str, Callable[[Function], Function]] = {
    "flash_mla": flash_mla,
    "split_cache": split_cache,
    "flashinfer": flashinfer,
    "contiguous_cache": contiguous_cache,
    "one_token": one_token,
    "vllm_decode": vllm_decode,
    "sglang_decode": sglang_decode,
    "trace_decode_ps1": _trace(False, 1),
    "trace_decode_ps64": _trace(False, 64),
    "trace_prefill_ps1": _trace(True, 1),
    "trace_prefill_ps64": _trace(True, 64),
}
"""Name of a style -> its adapter."""


def _token_rows(q: Any, block_table: Any, seq_lens: Any) -> tuple[Any, Any, Any]:
    """One row for each query token: q [B, S, H, D], block_table [B, M] and seq_lens [B] int32 as
    [T, H, D], [T, M] and [T] with T = B * S.

    The S tokens of a request are its last ones. A shorter request has tokens that see no key.
    """
    import torch

    num_tokens = q.shape[1]
    steps = torch.arange(1 - num_tokens, 1, device=q.device, dtype=seq_lens.dtype)
    lengths = (seq_lens[:, None] + steps).clamp(min=0).flatten()
    tables = block_table.repeat_interleave(num_tokens, dim=0)
    return q.flatten(0, 1).contiguous(), tables, lengths


def _slots(block_table: Any, seq_lens: Any, page_size: int) -> tuple[Any, Any]:
    """block_table [B, M] and seq_lens [B] int32, with pages of `page_size` slots, as starts [B + 1]
    int32 of each request in slots [n] int64.
    """
    import torch

    places = torch.arange(block_table.shape[1] * page_size, device=block_table.device)
    pages = block_table.long().repeat_interleave(page_size, dim=1)
    slots = (pages * page_size + places % page_size)[places < seq_lens[:, None]]
    starts = torch.cat((seq_lens.new_zeros(1), seq_lens.cumsum(0)))
    return starts.to(torch.int32), slots


def _refused(sentence: str) -> Exception:
    # The one of the cell, or else the harness's own.
    from harness import Refused

    return Refused(sentence)


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
