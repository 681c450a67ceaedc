"""vLLM's Triton MLA decode, called as in `TritonMLAImpl`."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

RANK = 512
MIN_WORK_PER_SPLIT = 512


def mla_decode(
    q: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    kv_scale: float | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Decode: q [B, S, H, 576], kv_cache [N, P, 576] bf16 or e4m3 -> out [B, S, H, 512], lse [B, H, S] float32.

    The kernel takes one query token a row, so each of S tokens becomes a request that ends at this token. Outputs are
    not zeroed as in vLLM: only what the kernel writes is judged.
    """
    decode = importlib.import_module("vllm.v1.attention.ops.triton_decode_attention").decode_attention_fwd
    num_requests, num_tokens, num_heads, width = q.shape
    if num_tokens > 1:
        back = torch.arange(num_tokens - 1, -1, -1, device=q.device, dtype=seq_lens.dtype)
        seq_lens = (seq_lens[:, None] - back).clamp(min=0).reshape(-1)
        block_table = block_table.repeat_interleave(num_tokens, dim=0)
    rows = num_requests * num_tokens
    splits = 1 << (max(1, block_table.shape[1] * kv_cache.shape[1] // MIN_WORK_PER_SPLIT) - 1).bit_length()
    out = torch.empty(rows, num_heads, RANK, dtype=q.dtype, device=q.device)
    lse = torch.empty(rows, num_heads, dtype=torch.float32, device=q.device)
    partial = torch.empty(rows, num_heads, splits, RANK + 1, dtype=torch.float32, device=q.device)
    cache = kv_cache.unsqueeze(2)
    one = torch.full((), 1.0 if kv_scale is None else kv_scale, dtype=torch.float32, device=q.device)
    decode(
        q=q.reshape(rows, num_heads, width).contiguous(), k_buffer=cache, v_buffer=cache[..., :RANK], o=out, lse=lse,
        req_to_token=block_table, b_seq_len=seq_lens, attn_logits=partial, num_kv_splits=splits, sm_scale=scale,
        page_size=kv_cache.shape[1], k_scale=one, v_scale=one, is_mla=True,
    )  # fmt: skip
    lse = lse.reshape(num_requests, num_tokens, num_heads).transpose(1, 2)
    return out.reshape(num_requests, num_tokens, num_heads, RANK), lse.contiguous()
