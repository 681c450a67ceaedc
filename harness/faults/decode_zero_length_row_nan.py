"""vllm-project/vllm#57017: the last stage of a split-KV decode divides 0 by 0 for a padded request."""

from __future__ import annotations

from torch import Tensor


def divide_without_guard(accumulated: Tensor, total: Tensor) -> Tensor:
    """accumulated [..., R] / total [...], also where no key was seen and both are 0: NaN."""
    return accumulated / total[..., None]
