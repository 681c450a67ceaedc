"""Known bugs of kernels of `context_attention`, which are injected on purpose."""

from __future__ import annotations

from torch import Tensor


def reshaped_lse(lse_by_token: Tensor) -> Tensor:
    """Read lse_by_token [T, H] float32 as [H, T] without transposing (vllm-project/vllm#26397)."""
    return lse_by_token.reshape(lse_by_token.shape[1], lse_by_token.shape[0])
