"""Activations rounded to MXFP8 before a projection: one scale a block of a row, loaded by whole tiles."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.engine.batch import Batch
from harness.engine.quantize import ActivationQuantizer, live_rows, pad_to_longest_rank
from harness.kernels.call import BoundKernel
from harness.kernels.ops.block_formats import FORMATS, SCALE_TILE, decoded_scales, decoded_values
from harness.memory.graph.launch import launch
from harness.memory.poison.patterns import Poison


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
