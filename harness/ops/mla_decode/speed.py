"""The calls whose speed is told beside a verdict, at sizes that users serve."""

from __future__ import annotations

import torch

from harness.core.kernels import KernelSpec
from harness.ops.mla_decode.params import MlaDecodeParams

SIZES = {
    "cpu": ((1, 1024), (4, 512)),
    "cuda": ((1, 8192), (32, 4096), (128, 2048)),
}
"""Device -> requests and keys of each."""


def params(spec: KernelSpec, batch: int, num_keys: int) -> MlaDecodeParams:
    """A decode of one token for each of `batch` requests of `num_keys` keys, 16 heads."""
    return MlaDecodeParams(
        kernel=spec.short_name,
        kv="bf16",
        seq_lens=(num_keys,) * batch,
        num_heads=16,
        planned=False,
    )


def cache(
    q: torch.Tensor, kv_cache: torch.Tensor, block_table: torch.Tensor, seq_lens: torch.Tensor
) -> torch.Tensor:
    """What a decode must read once: kv_cache [N, P, D]."""
    return kv_cache
