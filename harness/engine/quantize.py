"""Activations rounded to fp8 before a projection, where one row can spoil all others."""

from __future__ import annotations

from torch import Tensor

from harness.core.seams import seam
from harness.engine.batch import Batch
from harness.kernels.call import BoundKernel
from harness.memory.graph.launch import launch
from harness.memory.poison.patterns import Poison


class ActivationQuantizer:
    """Rounds the input of a projection to e4m3 and back, as in a scaled fp8 GEMM. Does nothing without a kernel.

    With one scale for the tensor, a NaN in a row that the maximum covers makes every row NaN. Data-parallel ranks pad
    activations to `rank_tokens`, the tokens of the longest rank. With `whole_batch` the scale covers padded rows too,
    as in an engine that keeps them finite.
    """

    def __init__(
        self, kernel: BoundKernel | None, poison: Poison, rank_tokens: int = 0, whole_batch: bool = False
    ) -> None:
        self._kernel = kernel
        self._poison = poison
        self._rank_tokens = rank_tokens
        self._whole_batch = whole_batch

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        """x: [T, K] -> the same shape and dtype, rounded."""
        if self._kernel is None:
            return x
        num_tokens = len(x)
        num_live: Tensor | int | None = None if self._whole_batch else rows_of_amax(batch)
        if num_tokens < self._rank_tokens:
            x = launch(pad_to_longest_rank, x, self._rank_tokens, self._poison)
            num_live = rows_of_this_rank(num_tokens) if num_live is None else num_live
        x8, scale = self._kernel(x, num_live=num_live)
        rounded: Tensor = x8.to(x.dtype) * scale.to(x.dtype)
        return rounded[:num_tokens]


def pad_to_longest_rank(x: Tensor, num_rows: int, poison: Poison) -> Tensor:
    """x [T, K] with unwritten rows behind it, [num_rows, K]."""
    padded = poison.empty(num_rows, x.shape[1], dtype=x.dtype, site="dp.pad_rows", device=x.device)
    padded[: len(x)] = x
    return padded


@seam("scale.dp-padding-in-amax")
def rows_of_this_rank(num_tokens: int) -> int | None:
    """The rows that a scale covers in a batch padded for data parallelism: the rank's own tokens, or None for all.

    The padding is unwritten memory (sgl-project/sglang#26133).
    """
    return num_tokens


def live_rows(batch: Batch) -> Tensor | None:
    """The number [1] int32 of live rows, which come first, or None if all rows are live.

    It is a tensor, because it changes from replay to replay of a graph.
    """
    return None if batch.prefill or batch.decode is None else batch.decode.num_live


@seam("graph.padded-rows-in-amax")
def rows_of_amax(batch: Batch) -> Tensor | None:
    """The number [1] int32 of first rows that a scale covers, or None for all: the live rows.

    Decode kernels leave padded rows unwritten (PR 37442, PR 38359).
    """
    return live_rows(batch)
