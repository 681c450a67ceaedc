"""FlashMLA as vLLM ships it: dense decode over bf16 and FP8 pages with its planners, and the sparse prefill kernel.

vLLM is imported inside the functions, because the import loads its CUDA extensions.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

RANK = 512
_OPS = "vllm.v1.attention.ops.flashmla"


def mla_decode_plan(seq_lens: Tensor, *, num_heads: int) -> Any:
    """An empty FlashMLASchedMeta. The first decode call with it makes the plan, and later calls reuse it."""
    ops = importlib.import_module(_OPS)
    return ops.get_mla_metadata(seq_lens, num_heads, 1, is_fp8_kvcache=False)[0]


def mla_decode(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, *, scale: float, metadata: Any = None, **_: Any
) -> tuple[Tensor, Tensor]:
    """Dense decode: q [B, S, H, 576] and kv_cache [N, 64, 576] bf16 -> out [B, S, H, 512] bf16, lse [B, H, S] fp32."""
    ops = importlib.import_module(_OPS)
    if metadata is None:
        metadata = mla_decode_plan(seq_lens, num_heads=q.shape[2])
    out, lse = ops.flash_mla_with_kvcache(
        q=q.contiguous(),
        k_cache=kv_cache.unsqueeze(-2),
        block_table=block_table,
        cache_seqlens=seq_lens,
        head_dim_v=RANK,
        tile_scheduler_metadata=metadata,
        softmax_scale=scale,
        causal=True,
        is_fp8_kvcache=False,
    )
    return out, lse


@dataclass  # without slots: the graph recorder looks for tensors in `__dict__`
class Fp8Plan:
    """Plan of the FP8 kernel."""

    tile_scheduler_metadata: Tensor
    num_splits: Tensor


def mla_decode_plan_fp8(seq_lens: Tensor, *, num_heads: int) -> Fp8Plan:
    """The plan for one query token a request."""
    ops = importlib.import_module(_OPS)
    plan = ops.get_mla_metadata_dense_fp8(cache_seqlens=seq_lens, num_q_tokens_per_head_k=num_heads, num_heads_k=1)
    return Fp8Plan(*plan)


def mla_decode_fp8(
    q: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    kv_scale: float | None = None,
    metadata: Any = None,
) -> tuple[Tensor, Tensor]:
    """Dense decode over e4m3 pages; shapes as in `mla_decode`. The query is quantized per tensor first, as in vLLM."""
    ops = importlib.import_module(_OPS)
    num_tokens = q.shape[1]
    if metadata is None or num_tokens != 1:
        metadata = mla_decode_plan_fp8(seq_lens, num_heads=q.shape[2] * num_tokens)
    amax = q.float().abs().amax().clamp(min=1e-6)
    q_scale = (amax / 448.0).reshape(1)
    q8 = (q.float() / q_scale).clamp(-448, 448).to(torch.float8_e4m3fn).contiguous()
    out, lse = ops.flash_mla_with_kvcache_fp8(
        q=q8,
        k_cache=kv_cache.unsqueeze(-2),
        block_table=block_table,
        cache_seqlens=seq_lens,
        head_dim_v=RANK,
        tile_scheduler_metadata=metadata.tile_scheduler_metadata,
        num_splits=metadata.num_splits,
        softmax_scale=scale,
        causal=True,
        descale_q=q_scale,
        descale_k=torch.full((1,), 1.0 if kv_scale is None else kv_scale, device=q.device),
    )
    return out, lse


def mla_decode_sparse(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, *, scale: float, **_: Any
) -> tuple[Tensor, Tensor]:
    """The sparse bf16 kernel with every token of a request selected; shapes as in `mla_decode`.

    Indices of slots are -1 past the request's length. Heads are padded to a multiple of 64. Each query token is a row.
    """
    ops = importlib.import_module(_OPS)
    num_requests, num_tokens, num_heads, width = q.shape
    page = kv_cache.shape[1]
    columns = -(-block_table.shape[1] * page // 128) * 128
    slot = torch.arange(columns, device=q.device)
    column = (slot // page).clamp(max=block_table.shape[1] - 1)
    slots = block_table.long()[:, column] * page + slot % page
    last = seq_lens[:, None] - num_tokens + torch.arange(1, num_tokens + 1, device=q.device)
    indices = torch.where(slot < last[..., None], slots[:, None, :], -1).to(torch.int32)
    padded = q.new_zeros(num_requests * num_tokens, -(-num_heads // 64) * 64, width)
    padded[:, :num_heads] = q.reshape(-1, num_heads, width)
    rows = indices.reshape(padded.shape[0], 1, columns).contiguous()
    out, _, lse = ops.flash_mla_sparse_fwd(
        q=padded, kv=kv_cache.reshape(-1, 1, width), indices=rows, sm_scale=scale, d_v=RANK
    )
    out = out[:, :num_heads].reshape(num_requests, num_tokens, num_heads, RANK)
    lse = lse[:, :num_heads].reshape(num_requests, num_tokens, num_heads).transpose(1, 2)
    return out.contiguous(), lse.contiguous()
