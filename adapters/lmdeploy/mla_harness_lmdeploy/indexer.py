"""The stages of LMDeploy's indexer before sparse attention: scores and two choices."""

from __future__ import annotations

import importlib

import torch
from torch import Tensor

from mla_harness_adapters.kernel_rows import row_lengths

_KERNELS = "lmdeploy.pytorch.kernels.cuda"


def index_logits(
    q: Tensor, weights: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor
) -> Tensor:
    """`fp8_index` over records: q [B, S, X, 128] e4m3, weights [B, S, X] float32, kv_cache [N, P,
    132] uint8 -> [B * S, M * P] float32.

    block_table [B, M] int32 has the pages of each request, seq_lens [B] int32 its tokens. In a page
    the codes of all keys lie first, and then their scales.
    """
    score = importlib.import_module(f"{_KERNELS}.ds_index").fp8_index
    num_requests, num_tokens, _, size = q.shape
    num_blocks, page = kv_cache.shape[:2]
    blocks = kv_cache.view(num_blocks, -1)
    codes = blocks[:, : page * size].view(num_blocks, page, size).view(torch.float8_e4m3fn)
    scales = blocks[:, page * size :].view(torch.float32)
    starts = torch.arange(num_requests + 1, dtype=torch.int32, device=q.device) * num_tokens
    logits: Tensor = score(
        q.flatten(0, 1),
        weights.flatten(0, 1),
        codes,
        scales,
        starts,
        seq_lens,
        block_table,
        max_q_seqlen=num_tokens,
        max_k_seqlen=block_table.shape[1] * page,
        causal=True,
    )
    return logits


def bitonic_topk(logits: Tensor, seq_lens: Tensor, *, topk: int) -> Tensor:
    """`bitonic_topk`: logits [B * S, L] float32, seq_lens [B] int32 -> [B * S, K] int32."""
    select = importlib.import_module(f"{_KERNELS}.bitonic_topk").bitonic_topk
    found: Tensor = select(logits, *_lengths(logits, seq_lens), topk, fill=-1, descending=True)
    return found


def radix_topk(logits: Tensor, seq_lens: Tensor, *, topk: int) -> Tensor:
    """`sparse_index_topk`: logits [B * S, L] float32, seq_lens [B] int32 -> [B * S, K] int32."""
    select = importlib.import_module(f"{_KERNELS}.sparse_index_topk").sparse_index_topk
    found: Tensor = select(logits, *_lengths(logits, seq_lens), topk, fill=-1)
    return found


def _lengths(logits: Tensor, seq_lens: Tensor) -> tuple[Tensor, Tensor]:
    """The query tokens of each request, and the keys that each row sees, as LMDeploy gives them."""
    num_tokens = len(logits) // len(seq_lens)
    return torch.full_like(seq_lens, num_tokens), row_lengths(seq_lens, num_tokens)
