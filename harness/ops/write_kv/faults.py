"""Known bugs of kernels of `write_kv`, which are injected on purpose."""

from __future__ import annotations

import torch
from torch import Tensor


def one_branch(kv_cache: Tensor) -> Tensor:
    """Store into contiguous pages alone, kv_cache [N, P, D] of any type (bfloat16, float8_e4m3fn,
    …), and drop what is for others (HYGON-AI/sglang-das#317).
    """
    return kv_cache if kv_cache.is_contiguous() else torch.empty_like(kv_cache)
