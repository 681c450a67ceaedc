"""Activations rounded to fp8 before a projection: the place where rows of a batch can spoil one another."""

from __future__ import annotations

from torch import Tensor

from harness.core.seams import seam
from harness.engine.batch import Batch
from harness.kernels.call import BoundKernel
from harness.memory.graph.launch import launch
from harness.memory.poison.patterns import Poison


class ActivationQuantizer:
    """Rounds the input of a projection to e4m3 and back, as a scaled fp8 GEMM sees it; does nothing without a kernel.

    With one scale for the whole tensor, a NaN in any row that the maximum covers makes every row NaN. Data-parallel
    ranks that exchange activations pad them to `rank_tokens` first, the tokens of the longest rank. With `whole_batch`
    the scale covers rows of padding too, as in an engine that keeps all of them finite.
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
    """x [T, K] with rows that nobody writes behind it, [num_rows, K]."""
    padded = poison.empty(num_rows, x.shape[1], dtype=x.dtype, site="dp.pad_rows", device=x.device)
    padded[: len(x)] = x
    return padded


@seam("scale.dp-padding-in-amax")
def rows_of_this_rank(num_tokens: int) -> int | None:
    """How many rows of a padded batch without graph padding are tokens, None for all: the rank's own.

    A scale over the padding is one over memory that nobody wrote (sgl-project/sglang#26133).
    """
    return num_tokens


def live_rows(batch: Batch) -> Tensor | None:
    """How many of the batch's first rows are requests, [1] int32, or None when all are.

    A tensor, because a captured graph must follow it from replay to replay.
    """
    return None if batch.prefill or batch.decode is None else batch.decode.num_live


@seam("graph.padded-rows-in-amax")
def rows_of_amax(batch: Batch) -> Tensor | None:
    """How many of the batch's first rows a scale covers, [1] int32, or None for all: the live ones.

    Decode kernels never write rows of padding, so a maximum over them is one over unwritten memory
    (PR 37442, PR 38359).
    """
    return live_rows(batch)
