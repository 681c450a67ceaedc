"""Activations rounded to fp8 before a projection: the place where rows of a batch can spoil one another."""

from __future__ import annotations

import torch

from harness.engine.batch import Batch
from harness.kernels.call import BoundKernel


class ActivationQuantizer:
    """Rounds the input of a projection to e4m3 and back, as a scaled fp8 GEMM sees it; does nothing without a kernel.

    With one scale for the whole tensor, a NaN in any row that the maximum covers makes every row NaN.
    """

    def __init__(self, kernel: BoundKernel | None) -> None:
        self._kernel = kernel

    def __call__(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        """x: [T, K] -> the same shape and dtype, rounded."""
        if self._kernel is None:
            return x
        x8, scale = self._kernel(x, num_live=live_rows(batch))
        rounded: torch.Tensor = x8.to(x.dtype) * scale.to(x.dtype)
        return rounded


def live_rows(batch: Batch) -> torch.Tensor | None:
    """How many of the batch's first rows are requests, [1] int32, or None when all are.

    A tensor, because a captured graph must follow it from replay to replay. Rows of padding are nobody's: decode
    kernels never write them, so a maximum that covers them covers memory (vllm-project/vllm#37442, #38359).
    """
    return None if batch.prefill or batch.decode is None else batch.decode.num_live
