"""Known bugs of kernels of `mla_decode_sparse`, which are injected on purpose."""

from __future__ import annotations

from torch import Tensor

from harness.memory.bounds import check_indices
from harness.ops.mla_decode_sparse.kernels.gather import gather_slots


def load_clamped(kv_cache: Tensor, indices: Tensor, chosen: Tensor) -> Tensor:
    """Load slot 0 for each index of -1 and trust the mask of the scores (vllm-project/vllm#57156).

    kv_cache [N, P, D], indices [T, K] int32, chosen [T, K] bool, not used -> [T, K, D] float32.
    """
    slots = check_indices(indices.clamp(min=0), kv_cache.shape[0] * kv_cache.shape[1], "indices")
    return gather_slots(kv_cache, slots)
