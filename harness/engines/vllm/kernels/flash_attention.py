"""FlashAttention-3, called as vLLM calls it for MLA: decode with the latent as value (`q_v`), and prefill context."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

RANK = 512
_MODULE = "vllm.vllm_flash_attn"


def mla_decode(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, *, scale: float, **_: Any
) -> tuple[Tensor, Tensor]:
    """Decode: q [B, S, H, 576], kv_cache [N, 64, 576] bf16 -> out [B, S, H, 512], lse [B, H, S] float32."""
    attention = importlib.import_module(_MODULE).flash_attn_varlen_func
    num_requests, num_tokens, num_heads = q.shape[:3]
    flat = q.reshape(num_requests * num_tokens, num_heads, -1)
    starts = torch.arange(0, flat.shape[0] + 1, num_tokens, dtype=torch.int32, device=q.device)
    out, lse = attention(
        q=flat[..., RANK:],
        k=kv_cache[..., RANK:].unsqueeze(-2),
        v=kv_cache[..., :RANK].unsqueeze(-2),
        q_v=flat[..., :RANK],
        max_seqlen_q=num_tokens,
        cu_seqlens_q=starts,
        max_seqlen_k=block_table.shape[1] * kv_cache.shape[1],
        seqused_k=seq_lens,
        block_table=block_table,
        softmax_scale=scale,
        causal=True,
        return_softmax_lse=True,
        fa_version=3,
    )
    lse = lse.reshape(num_heads, num_requests, num_tokens).permute(1, 0, 2)
    return out.reshape(num_requests, num_tokens, num_heads, RANK), lse.contiguous()


def context_attention(
    q: Tensor, k: Tensor, v: Tensor, query_start_loc: Tensor, chunk_start_loc: Tensor, *, scale: float
) -> tuple[Tensor, Tensor]:
    """Prefill over a context chunk, not causal: q [T, H, 192], k [C, H, 192], v [C, H, 128] -> [T, H, 128], [H, T]."""
    attention = importlib.import_module(_MODULE).flash_attn_varlen_func
    longest_q = int((query_start_loc[1:] - query_start_loc[:-1]).max())
    longest_k = max(1, int((chunk_start_loc[1:] - chunk_start_loc[:-1]).max()))
    # Without splits the op returns undefined tensors, and a dispatch mode fails on these. Nothing is lost: the kernel
    # allocates in C++, which only a sweep of free memory reaches.
    with _disable_current_modes():
        out, lse = attention(
            q=q,
            k=k,
            v=v,
            max_seqlen_q=longest_q,
            max_seqlen_k=longest_k,
            cu_seqlens_q=query_start_loc,
            cu_seqlens_k=chunk_start_loc,
            softmax_scale=scale,
            causal=False,
            return_softmax_lse=True,
            fa_version=3,
        )
    return out, lse
