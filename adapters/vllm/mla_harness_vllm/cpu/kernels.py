"""Kernels of vLLM's CPU build, called as its backends CPU_MLA and AMX_MLA call them.

vLLM is imported inside the functions. The AMX backend's kernels run on any processor with AVX512,
where vLLM does not choose them by itself.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
from torch import Tensor

from harness.api import Code, Refused, WhyNot
from mla_harness_adapters.kernel_rows import row_lengths
from mla_harness_vllm.cpu.build import why_no_cpu_build
from mla_harness_vllm.kernels import merged

RANK = 512
WIDTH = 576
PAGE = 16
"""Slots of a page of CPU_MLA, a part of a page of the op."""
_SPLIT_TOKENS = 512
"""Tokens of a split of the AMX decode."""


def on_cpu(device: str) -> WhyNot | None:
    """For kernels that every build for x86 has."""
    if device != "cpu":
        why = f"kernels of vLLM's CPU build run on a CPU, not on {device}"
        return WhyNot(why, Code.NO_DEVICE)
    return why_no_cpu_build()


def on_avx512(device: str) -> WhyNot | None:
    """For kernels of the AMX backend."""
    if reason := on_cpu(device):
        return reason
    if not torch.cpu._is_avx512_bf16_supported():
        return WhyNot("needs a processor with AVX512-BF16", Code.NO_DEVICE)
    return None


@functools.cache
def _ops() -> Any:
    """The ops of vLLM's extension, loaded once."""
    importlib.import_module("vllm.platforms").current_platform.import_kernels()
    return torch.ops._C


def _paged(kv_cache: Tensor, slots: int) -> Tensor:
    """kv_cache [N, P, 576] as pages of fewer slots, [N * P / slots, slots, 576].

    Raises Refused for pages with gaps between them, which have no such view.
    """
    if not kv_cache.is_contiguous():
        raise Refused("pages of 64 slots with gaps between them are no pages of fewer slots")
    return kv_cache.view(-1, slots, WIDTH)


def decode(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, *, scale: float, **_: Any
) -> Tensor:
    """`mla_decode_kvcache`: q [B, S, H, 576] and kv_cache [N, 64, 576] of one float type -> out [B,
    S, H, 512] of that type.

    block_table [B, M] int32 has the pages of each request, seq_lens [B] int32 its tokens. The op
    takes pages of 16 slots and one query token a row, so a page of 64 is four pages, and each query
    token is a row.
    """
    num_requests, num_tokens, num_heads, _width = q.shape
    parts = kv_cache.shape[1] // PAGE
    pages = _paged(kv_cache, PAGE)
    table = block_table[:, :, None] * parts + torch.arange(parts, dtype=torch.int32)
    rows = table.flatten(1).repeat_interleave(num_tokens, 0).contiguous()
    # As in vLLM: the op adds to nothing, but vLLM hands it zeros.
    out = q.new_zeros(num_requests * num_tokens, num_heads, RANK)
    _ops().mla_decode_kvcache(
        out,
        q.reshape(-1, num_heads, WIDTH).contiguous(),
        pages,
        scale,
        rows,
        row_lengths(seq_lens, num_tokens),
    )
    return out.view(num_requests, num_tokens, num_heads, RANK)


def _slots(block_table: Tensor, page: int) -> Tensor:
    """The rows of the flat cache, int32 [B, M * page], that pages of block_table [B, M] have."""
    offsets = torch.arange(page, dtype=block_table.dtype)
    return (block_table[:, :, None] * page + offsets).flatten(1).contiguous()


def amx_decode(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, *, scale: float, **_: Any
) -> Tensor:
    """`decode_attention_cpu`: q [B, S, H, 576] and kv_cache [N, 64, 576] bf16 -> out [B, S, H, 512]
    bf16.

    block_table [B, M] int32 has the pages of each request, seq_lens [B] int32 its tokens. Each
    query token is a row. Keys are split by the longest request, as vLLM's backend does.
    """
    num_requests, num_tokens, num_heads, _width = q.shape
    flat = _paged(kv_cache, 1)
    lengths = row_lengths(seq_lens, num_tokens).long()
    splits = 1
    while splits < max(1, int(lengths.max()) // _SPLIT_TOKENS):
        splits *= 2
    out = q.new_zeros(num_requests * num_tokens, num_heads, RANK)
    partial = torch.zeros(len(lengths), num_heads, min(splits, 2), RANK + 1)
    nothing = (None, None, None)
    _ops().decode_attention_cpu(
        q.reshape(-1, num_heads, WIDTH).contiguous(),
        flat,
        flat[..., :RANK],
        out,
        *nothing,
        partial,
        _slots(block_table, kv_cache.shape[1]).repeat_interleave(num_tokens, 0),
        torch.arange(len(lengths)),
        lengths,
        scale,
        0.0,
        False,
        0,
        None,
        None,
    )
    return out.view(num_requests, num_tokens, num_heads, RANK)


def amx_extend(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, *, scale: float, **_: Any
) -> Tensor:
    """`extend_attention_cpu`, as prefills of the AMX backend call it: q [B, S, H, 576] and kv_cache
    [N, 64, 576] bf16 -> out [B, S, H, 512] bf16.

    block_table [B, M] int32 has the pages of each request, seq_lens [B] int32 its tokens, of which
    the last S are new: the op takes their keys from a tensor of their own. Raises Refused where a
    request has fewer tokens than S, which no prefill has.
    """
    num_requests, num_tokens, num_heads, _width = q.shape
    lengths = seq_lens.long()
    if bool((lengths < num_tokens).any()):
        raise Refused("a request of extend_attention_cpu has at least its new tokens")
    flat = _paged(kv_cache, 1)
    slots = _slots(block_table, kv_cache.shape[1])
    places = lengths[:, None] - num_tokens + torch.arange(num_tokens)
    new = flat[slots.long().gather(1, places).flatten()]
    out = q.new_empty(num_requests * num_tokens, num_heads, RANK)
    _ops().extend_attention_cpu(
        q.reshape(-1, num_heads, WIDTH).contiguous(),
        new,
        new[..., :RANK],
        out,
        flat,
        flat[..., :RANK],
        slots.long(),
        torch.arange(num_requests),
        lengths,
        torch.full((num_requests,), num_tokens),
        torch.arange(num_requests) * num_tokens,
        num_tokens,
        scale,
        0.0,
        False,
        0,
        None,
        None,
        None,
    )
    return out.view(num_requests, num_tokens, num_heads, RANK)


def write_kv(kv_c: Tensor, k_pe: Tensor, kv_cache: Tensor, slot_mapping: Tensor, **_: Any) -> None:
    """`do_kv_cache_update` of CPU_MLA: kv_c [T, 512] and k_pe [T, 64] to kv_cache [N, 64, 576] at
    slot_mapping [T].
    """
    backend = importlib.import_module("vllm.v1.attention.backends.mla.cpu_mla")
    _paged(kv_cache, 1)  # vLLM's writer takes a view of this kind
    backend.CPUMLAImpl.do_kv_cache_update(
        None, kv_c, k_pe.unsqueeze(1), kv_cache, slot_mapping.long(), "auto", None
    )


def amx_write_kv(
    kv_c: Tensor, k_pe: Tensor, kv_cache: Tensor, slot_mapping: Tensor, **_: Any
) -> None:
    """`concat_and_cache_mla_cpu` of AMX_MLA, bf16: kv_c [T, 512] and k_pe [T, 64] to kv_cache [N,
    64, 576] at slot_mapping [T].
    """
    _ops().concat_and_cache_mla_cpu(kv_c, k_pe, kv_cache, slot_mapping.long())


def context_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_start_loc: Tensor,
    chunk_start_loc: Tensor,
    *,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """CPU_SDPA_MLA over a context chunk, not causal: q [T, H, 192], k [C, H, 192], v [C, H, 128] ->
    out [T, H, 128] of their type, lse [H, T] float32.

    query_start_loc [R + 1] int32 and chunk_start_loc [R + 1] int32 are where each request begins.
    """
    prefill = importlib.import_module("vllm.v1.attention.backends.mla.prefill.cpu_sdpa")
    backend = object.__new__(prefill.CPUSDPAMLAPrefillBackend)
    backend.scale = scale
    out, lse = backend._ragged_sdpa(q, k, v, query_start_loc, chunk_start_loc, False, True)
    return out, lse


def merge_attn_states(
    *states: Tensor, num_tokens_with_context: int | None = None
) -> tuple[Tensor, Tensor]:
    """The merge in torch that vLLM takes on a CPU: prefix out [T, H, V], prefix lse [H, T] float32,
    suffix out, suffix lse -> out [T, H, V], lse [H, T] float32.
    """
    return merged("vllm.v1.attention.ops.merge_attn_states", *states, count=num_tokens_with_context)
