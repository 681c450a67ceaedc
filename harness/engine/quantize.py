"""Activations rounded to fp8 or MXFP8 before a projection, where one row can spoil others."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.core.seams import seam
from harness.engine.batch import Batch
from harness.kernels.call import BoundKernel
from harness.kernels.ops.block_formats import FORMATS, SCALE_TILE, decoded_scales, decoded_values
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


class BlockQuantizer(ActivationQuantizer):
    """Rounds the input of a projection to a block format and back. A row can spoil another only through the scales."""

    def __init__(self, kernel: BoundKernel, poison: Poison, block_format: str, rank_tokens: int = 0) -> None:
        super().__init__(kernel, poison, rank_tokens)
        self._blocks = kernel
        self._format = block_format

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        """x: [T, K] -> the same shape and dtype, rounded. Padded rows are 0 or undefined."""
        num_tokens, num_live = len(x), live_rows(batch)
        if num_tokens < self._rank_tokens:
            x = launch(pad_to_longest_rank, x, self._rank_tokens, self._poison)
        offsets = launch(one_expert, num_tokens if num_live is None else num_live, len(x))
        values, scales = self._blocks(x, offsets, block_format=self._format)
        rounded: Tensor = launch(apply_scales, values, scales, self._format)
        return rounded[:num_tokens].to(x.dtype)


def one_expert(num_live: int | Tensor, num_rows: int) -> Tensor:
    """`expert_offsets` [2] int32 that give the first `num_live` of `num_rows` rows to one expert.

    A capture runs on dummy inputs of the largest graph, so `num_live` may exceed `num_rows`.
    """
    end = torch.as_tensor(num_live, dtype=torch.int32).reshape(1).clamp(max=num_rows)
    return torch.cat((torch.zeros_like(end), end))


def apply_scales(values: Tensor, scales: Tensor, block_format: str) -> Tensor:
    """Codes [T, C] and scale codes [S, G] as numbers [T, K] float32, scaled by whole tiles as in a GEMM.

    Scales are taken relative to the largest of their tile. They are powers of two, so this is exact, but it reads the
    rows that pad the tile.
    """
    form = FORMATS[block_format]
    tiles = decoded_scales(scales, form).view(-1, SCALE_TILE, scales.shape[1])
    largest = tiles.amax(dim=1, keepdim=True)
    relative, largest = (tiles / largest).flatten(0, 1), largest.expand_as(tiles).flatten(0, 1)
    num_rows = min(len(values), len(scales))
    blocks = decoded_values(values[:num_rows], form).view(num_rows, -1, form.block)
    out = torch.zeros(len(values), scales.shape[1] * form.block, device=values.device)
    out[:num_rows] = (blocks * relative[:num_rows, :, None] * largest[:num_rows, :, None]).flatten(1)
    return out
