"""vLLM's `concat_and_cache_mla`, which stores latents in pages of bf16 or e4m3."""

from __future__ import annotations

import importlib

import torch
from torch import Tensor


def write_kv(
    kv_c: Tensor, k_pe: Tensor, kv_cache: Tensor, slot_mapping: Tensor, *, kv_scale: float | None = None
) -> None:
    """Write kv_c [T, 512] and k_pe [T, 64] to kv_cache [N, 64, 576] at slot_mapping [T], passed as int64 as in vLLM."""
    ops = importlib.import_module("vllm._custom_ops")
    is_fp8 = kv_cache.dtype == torch.float8_e4m3fn
    scale = torch.full((1,), 1.0 if kv_scale is None else kv_scale, dtype=torch.float32, device=kv_c.device)
    target = kv_cache.view(torch.uint8) if is_fp8 else kv_cache
    ops.concat_and_cache_mla(
        kv_c=kv_c,
        k_pe=k_pe,
        kv_cache=target,
        slot_mapping=slot_mapping.long(),
        kv_cache_dtype="fp8_e4m3" if is_fp8 else "auto",
        scale=scale,
    )
