"""Kernels for Blackwell, called as vLLM calls them. They have not run on a GPU yet (see docs/vllm.md)."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

RANK = 512
NUM_KV_SPLITS = 1


def cutlass_mla_decode(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, *, scale: float, **_: Any
) -> tuple[Tensor, Tensor]:
    """CUTLASS MLA of vllm._custom_ops, with heads padded to 128: q [B, 1, H, 576] -> [B, 1, H, 512], [B, H, 1]."""
    ops = importlib.import_module("vllm._custom_ops")
    num_requests, num_heads, width = q[:, 0].shape
    padded = q.new_zeros(num_requests, 128, width)
    padded[:, :num_heads] = q[:, 0]
    out = torch.empty(num_requests, 128, RANK, dtype=q.dtype, device=q.device)
    lse = torch.empty(num_requests, 128, dtype=torch.float32, device=q.device)
    num_sms = torch.cuda.get_device_properties(q.device).multi_processor_count
    longest = block_table.shape[1] * kv_cache.shape[1]
    size = ops.sm100_cutlass_mla_get_workspace_size(
        max_seq_len=longest, num_batches=num_requests, sm_count=num_sms, num_kv_splits=NUM_KV_SPLITS
    )
    workspace = torch.empty(size, dtype=torch.uint8, device=q.device)
    nope, rope = padded[..., :RANK].contiguous(), padded[..., RANK:].contiguous()
    ops.sm100_cutlass_mla_decode(
        out=out,
        lse=lse,
        q_nope=nope,
        q_pe=rope,
        kv_c_and_k_pe_cache=kv_cache,
        seq_lens=seq_lens,
        page_table=block_table,
        workspace=workspace,
        scale=scale,
        num_kv_splits=NUM_KV_SPLITS,
    )
    return out[:, None, :num_heads].contiguous(), lse[:, :num_heads, None].contiguous()


def flashinfer_mla_decode(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, *, scale: float, **_: Any
) -> tuple[Tensor, Tensor]:
    """FlashInfer's TRT-LLM-gen decode: q [B, S, H, 576] -> [B, S, H, 512]. It has no lse, so lse stays unwritten."""
    decode = importlib.import_module("flashinfer.decode").trtllm_batch_decode_with_kv_cache_mla
    workspace = torch.zeros(128 << 20, dtype=torch.uint8, device=q.device)
    out = decode(
        query=q, kv_cache=kv_cache.unsqueeze(1), workspace_buffer=workspace, qk_nope_head_dim=128, kv_lora_rank=RANK,
        qk_rope_head_dim=q.shape[-1] - RANK, block_tables=block_table, seq_lens=seq_lens,
        max_seq_len=block_table.shape[1] * kv_cache.shape[1], bmm1_scale=scale, bmm2_scale=1.0,
    )  # fmt: skip
    return out, torch.empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32, device=q.device)


def trtllm_ragged_context_attention(
    q: Tensor, k: Tensor, v: Tensor, query_start_loc: Tensor, chunk_start_loc: Tensor, *, scale: float
) -> tuple[Tensor, Tensor]:
    """TRT-LLM ragged prefill over a context chunk, into an unwritten output: q, k [., H, 192], v [., H, 128]."""
    attention = importlib.import_module("flashinfer.prefill").trtllm_ragged_attention_deepseek
    lengths = chunk_start_loc[1:] - chunk_start_loc[:-1]
    out = torch.empty(q.shape[0], q.shape[1], v.shape[2], dtype=q.dtype, device=q.device)
    out, lse = attention(
        query=q, key=k, value=v, workspace_buffer=torch.zeros(128 << 20, dtype=torch.uint8, device=q.device),
        seq_lens=lengths, max_q_len=int((query_start_loc[1:] - query_start_loc[:-1]).max()),
        max_kv_len=max(1, int(lengths.max())), bmm1_scale=scale, bmm2_scale=1.0, o_sf_scale=1.0,
        batch_size=lengths.shape[0], window_left=-1, cum_seq_lens_q=query_start_loc,
        cum_seq_lens_kv=chunk_start_loc, enable_pdl=False, is_causal=False, return_lse=True, out=out,
    )  # fmt: skip
    lse = lse.transpose(0, 1).contiguous()
    # Since 0.29 vLLM converts the kernel's log-sum-exp from base 2.
    to_base_e = getattr(importlib.import_module("vllm.v1.attention.backends.utils"), "log2_lse_to_ln", None)
    return out, to_base_e(lse) if to_base_e else lse
