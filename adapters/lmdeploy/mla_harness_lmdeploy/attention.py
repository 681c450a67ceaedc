"""Decode and the write of latents by LMDeploy's PyTorch engine, called as it calls them."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

import torch
from torch import Tensor

from harness.api import Code, Refused, WhyNot
from mla_harness_adapters.base import why_no_kernels
from mla_harness_adapters.kernel_rows import slots_of_rows
from mla_harness_lmdeploy.tables import ENGINE

_KERNELS = "lmdeploy.pytorch.kernels.cuda"
RANK = 512
INDEX_BLOCK = 64
"""Positions that the sparse kernel takes at once; a list has a multiple of it."""
HEAD_BLOCK = 64
"""Heads that it takes at once; of more heads there must be a multiple of it."""

on_ampere = functools.partial(
    why_no_kernels, ENGINE, majors=range(8, 100), words="Ampere (8.0) and later"
)
"""For the Triton kernels."""


def on_ampere_with_tilelang(device: str) -> WhyNot | None:
    """For the kernels that TileLang compiles. LMDeploy takes others where it is missing."""
    if reason := on_ampere(device):
        return reason
    if importlib.util.find_spec("tilelang") is None:
        how = "pip install tilelang"
        return WhyNot(f"TileLang is not installed ({how})", Code.NOT_INSTALLED, "TileLang", how)
    return None


def _storage(cache: Tensor, kv_scale: float | None) -> dict[str, Any]:
    """How a cache holds latents, as LMDeploy's kernels ask it: its policy, and for e4m3 the scale
    of K and of V, [1] float32.
    """
    policies = importlib.import_module("lmdeploy.messages").QuantPolicy
    if cache.dtype != torch.float8_e4m3fn:
        return {"quant_policy": policies.NONE}
    value = 1.0 if kv_scale is None else kv_scale
    scale = torch.full((1,), value, dtype=torch.float32, device=cache.device)
    return {"quant_policy": policies.FP8, "k_scales_zeros": scale, "v_scales_zeros": scale}


def decode(
    q: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    kv_scale: float | None = None,
    **_: Any,
) -> Tensor:
    """`flash_attn_with_kvcache` with the latent as key and value: q [B, 1, H, 576] bf16, kv_cache
    [N, P, 576] bf16 or e4m3 -> out [B, 1, H, 512] bf16.

    block_table [B, M] int32 has the pages of each request, seq_lens [B] int32 its tokens. The
    scores are multiplied by `scale`, an fp8 cache by `kv_scale`, or by 1 without one. V gets the
    scale of K, of which it is a part; in LMDeploy each has its own, and both are 1 unless a
    checkpoint says otherwise.
    """
    attend = importlib.import_module(f"{_KERNELS}.pagedattention").flash_attn_with_kvcache
    keys = kv_cache[:, :, None]
    out: Tensor = attend(
        q.flatten(0, 1),
        keys,
        keys[..., :RANK],
        cache_seqlens=seq_lens,
        page_table=block_table,
        softmax_scale=scale,
        **_storage(kv_cache, kv_scale),
    )
    return out.view(*q.shape[:3], RANK)


def sparse_decode(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, *, scale: float, **_: Any
) -> Tensor:
    """`tilelang_sparse_mla_forward` with every token of a request chosen: q [B, S, H, 576] and
    kv_cache [N, 64, 576] bf16 -> out [B, S, H, 512] bf16.

    block_table [B, M] int32 has the pages of each request, seq_lens [B] int32 its tokens. Slots are
    -1 past the request's length. Each query token is a row. A list is as long as the next power of
    two, as TileLang compiles a kernel for each length.

    Raises Refused for more than 64 heads that are no multiple of 64, as LMDeploy does.
    """
    num_requests, num_tokens, num_heads, width = q.shape
    if num_heads > HEAD_BLOCK and num_heads % HEAD_BLOCK:
        raise Refused(f"LMDeploy's sparse kernel takes {num_heads} heads only in blocks of 64")
    attend = importlib.import_module(f"{_KERNELS}.tilelang_sparse_mla").tilelang_sparse_mla_forward
    page = kv_cache.shape[1]
    columns = max(INDEX_BLOCK, 1 << (block_table.shape[1] * page - 1).bit_length())
    indices = slots_of_rows(
        block_table, seq_lens, num_tokens=num_tokens, page_size=page, columns=columns
    )
    out: Tensor = attend(q.flatten(0, 1), kv_cache.reshape(-1, 1, width), indices[:, None], scale)
    return out.view(num_requests, num_tokens, num_heads, RANK)


def write_kv(
    kv_c: Tensor,
    k_pe: Tensor,
    kv_cache: Tensor,
    slot_mapping: Tensor,
    *,
    kv_scale: float | None = None,
) -> None:
    """`fill_kv_cache`: kv_c [T, 512] and k_pe [T, 64] bf16 to kv_cache [N, P, 576] bf16 or e4m3 at
    slot_mapping [T] int64.

    LMDeploy writes the last tokens of requests. Each token is given as a request that decodes, in
    one page that ends behind it; one with a negative slot is a request of no token. An fp8 cache
    holds latents divided by `kv_scale`, or by 1 without one.
    """
    fill = importlib.import_module(f"{_KERNELS}.fill_kv_cache").fill_kv_cache
    page = kv_cache.shape[1]
    states = torch.cat([kv_c, k_pe], dim=-1)[:, None]
    caches = kv_cache[:, :, None]
    is_written = slot_mapping >= 0
    token = torch.arange(len(slot_mapping), device=kv_c.device)
    fill(
        states,
        states[..., :RANK],
        caches,
        caches[..., :RANK],
        q_start_loc=token,
        q_seq_length=is_written.long(),
        kv_seq_length=torch.where(is_written, slot_mapping % page + 1, 0),
        max_q_seq_length=1,
        block_offsets=slot_mapping.clamp(min=0)[:, None] // page,
        **_storage(kv_cache, kv_scale),
    )
