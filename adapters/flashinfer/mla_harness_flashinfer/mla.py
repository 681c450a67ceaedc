"""FlashInfer's MLA wrapper, called as engines call it: planned on the host for each batch, then run
over paged latents.

FlashInfer compiles a kernel when it first runs, for minutes without its cache package.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
from torch import Tensor

from harness.api import Refused
from mla_harness_adapters.base import why_no_kernels
from mla_harness_flashinfer.tables import ENGINE

RANK = 512
WORKSPACE_BYTES = 128 << 20
"""The size that FlashInfer recommends, for partial results of split requests."""


on_ampere = functools.partial(
    why_no_kernels, ENGINE, majors=range(8, 100), words="Ampere (8.0) and later"
)
"""For the FA2 backend."""
on_hopper = functools.partial(why_no_kernels, ENGINE, majors=(9,), words="Hopper (9.0)")
"""For the FA3 backend."""


def mla_decode_fa2(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, *, scale: float, **_: Any
) -> tuple[Tensor, Tensor]:
    """Decode by FlashInfer's FA2 backend.

    q [B, S, H, 576] bf16, kv_cache [N, P, 576] bf16, block_table [B, M] int32, seq_lens [B] int32
    -> out [B, S, H, 512] bf16, lse [B, H, S] float32, the natural logarithm. The scores are
    multiplied by `scale`.

    Raises Refused for a call that FlashInfer refuses to plan, as it does since 0.7.
    """
    return _decode("fa2", q, kv_cache, block_table, seq_lens, scale)


def mla_decode_fa3(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, *, scale: float, **_: Any
) -> tuple[Tensor, Tensor]:
    """Decode by FlashInfer's FA3 backend.

    q [B, S, H, 576] bf16, kv_cache [N, P, 576] bf16, block_table [B, M] int32, seq_lens [B] int32
    -> out [B, S, H, 512] bf16, lse [B, H, S] float32, the natural logarithm. The scores are
    multiplied by `scale`.

    Raises Refused for a call that FlashInfer refuses to plan, as it does since 0.7.
    """
    return _decode("fa3", q, kv_cache, block_table, seq_lens, scale)


def _decode(
    backend: str, q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    wrapper_type = importlib.import_module("flashinfer.mla").BatchMLAPagedAttentionWrapper
    wrapper = wrapper_type(
        torch.empty(WORKSPACE_BYTES, dtype=torch.int8, device=q.device), backend=backend
    )
    num_requests, num_tokens, num_heads, _ = q.shape
    page_size = kv_cache.shape[1]
    rope = q.shape[3] - RANK
    pages = (seq_lens.to(torch.int64) + page_size - 1) // page_size
    # FlashInfer takes the pages of all requests as one list, without the padding of the table.
    used = block_table[torch.arange(block_table.shape[1], device=q.device) < pages[:, None]]
    starts = torch.arange(num_requests + 1, dtype=torch.int32, device=q.device) * num_tokens
    offsets = torch.cat([pages.new_zeros(1), pages.cumsum(0)]).to(torch.int32)
    try:
        wrapper.plan(
            starts,
            offsets,
            used,
            seq_lens,
            num_heads,
            RANK,
            rope,
            page_size,
            True,
            scale,
            q.dtype,
            kv_cache.dtype,
        )
    except Exception as error:
        # Since 0.7: it depends on the lengths, so no declared shape can say it.
        if type(error).__name__ == "_BackendPlanUnsupportedError":
            raise Refused(f"FlashInfer refuses this call: {error}") from error
        raise
    flat = q.reshape(num_requests * num_tokens, num_heads, -1)
    q_nope = flat[..., :RANK].contiguous()
    q_rope = flat[..., RANK:].contiguous()
    latents = kv_cache[..., :RANK]
    rope_keys = kv_cache[..., RANK:]
    out, lse = wrapper.run(
        q_nope, q_rope, latents, rope_keys, return_lse=True, return_lse_base_on_e=True
    )
    lse = lse.reshape(num_requests, num_tokens, num_heads).transpose(1, 2)
    return out.reshape(num_requests, num_tokens, num_heads, RANK), lse.contiguous()
