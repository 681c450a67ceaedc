"""FlashInfer's MLA wrapper as engines call it: planned on the host for each batch, then run over paged latents.

FlashInfer compiles its kernels where they first run, which takes minutes without its cache package. Imports are inside
the functions, as those of vLLM are.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from harness.engines.base import why_no_kernels, why_not_built
from harness.engines.flashinfer.tables import ENGINE
from harness.kernels.torch.plan import num_pages

RANK = 512
WORKSPACE_BYTES = 128 << 20
"""What FlashInfer recommends for the partial results of split requests."""


def on_ampere(device: str) -> str | None:
    """For the FA2 back end, which runs from compute capability 8.0 on."""
    return why_no_kernels(ENGINE, device) or why_not_built(range(8, 100), "Ampere (8.0) and later")


def on_hopper(device: str) -> str | None:
    """For the FA3 back end, of compute capability 9.0."""
    return why_no_kernels(ENGINE, device) or why_not_built((9,), "Hopper (9.0)")


def mla_decode_fa2(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, *, scale: float,
    kv_scale: float | None = None, metadata: Any = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Decode by FA2: q [B, S, H, 576], kv_cache [N, P, 576] bf16 -> out [B, S, H, 512], lse [B, H, S] float32."""
    return _decode("fa2", q, kv_cache, block_table, seq_lens, scale)


def mla_decode_fa3(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, *, scale: float,
    kv_scale: float | None = None, metadata: Any = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Decode by FA3; shapes as those of FA2."""
    return _decode("fa3", q, kv_cache, block_table, seq_lens, scale)


def _decode(
    backend: str, q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    wrapper_type = importlib.import_module("flashinfer.mla").BatchMLAPagedAttentionWrapper
    wrapper = wrapper_type(torch.empty(WORKSPACE_BYTES, dtype=torch.int8, device=q.device), backend=backend)
    num_requests, num_tokens, num_heads, _ = q.shape
    pages = num_pages(seq_lens)
    is_used = torch.arange(block_table.shape[1], device=q.device) < pages[:, None]
    starts = torch.arange(num_requests + 1, dtype=torch.int32, device=q.device) * num_tokens
    wrapper.plan(
        starts, _offsets(pages), block_table[is_used], seq_lens, num_heads, RANK, q.shape[3] - RANK, kv_cache.shape[1],
        True, scale, q.dtype, kv_cache.dtype,
    )  # fmt: skip
    flat = q.reshape(num_requests * num_tokens, num_heads, -1)
    out, lse = wrapper.run(
        flat[..., :RANK].contiguous(), flat[..., RANK:].contiguous(), kv_cache[..., :RANK], kv_cache[..., RANK:],
        return_lse=True, return_lse_base_on_e=True,
    )  # fmt: skip
    lse = lse.reshape(num_requests, num_tokens, num_heads).transpose(1, 2)
    return out.reshape(num_requests, num_tokens, num_heads, RANK), lse.contiguous()


def _offsets(counts: Tensor) -> Tensor:
    """[B] -> [B + 1] int32: where each request's pages begin among all."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(torch.int32)
