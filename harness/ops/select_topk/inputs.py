"""Seeded inputs of `select_topk`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.ops.parts import cache_layouts
from harness.ops.parts.inputs import OpInputs, Unowned
from harness.ops.parts.pages import lengths_of_rows
from harness.ops.select_topk.params import SelectTopkParams


@dataclass(slots=True)
class TopkInputs(OpInputs):
    """Arguments of `select_topk`, and the buffer [T + 2, K] that begins with the rows of `out`."""

    logits: Tensor
    seq_lens: Tensor
    topk: int
    buffer: Tensor


def draw(params: SelectTopkParams, seed: int) -> TopkInputs:
    """Logits of each row up to its length; what is behind is unowned, and so is the output's
    buffer.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = len(params.seq_lens) * params.query_len
    columns = max(params.seq_lens) + params.spare_columns
    logits = torch.zeros(rows, columns)
    if params.row_stride:
        logits = cache_layouts.spread((rows, columns), torch.float32, params.row_stride)
    lens = torch.tensor(params.seq_lens, dtype=torch.int32)
    lengths = lengths_of_rows(lens, params.query_len)
    for row in range(rows):
        word = params.values[row % len(params.values)]
        logits[row] = _drawn_logits(word, columns, params.topk, generator)
    # Two rows behind the output show a store past its end.
    buffer = torch.zeros(rows + 2, params.topk, dtype=torch.int32)
    unowned = [
        Unowned("sparse.logits", logits[row, length:])
        for row, length in enumerate(lengths.tolist())
    ]
    return TopkInputs(
        logits, lens, params.topk, buffer, unowned=[*unowned, Unowned("sparse.topk", buffer)]
    )


def _drawn_logits(word: str, count: int, topk: int, generator: torch.Generator) -> Tensor:
    """Logits [count] of a row; see `LogitValues`."""
    values = torch.randn(count, generator=generator)
    if word == "ties":
        return values.round()
    if word == "plain":
        return values
    signs = torch.randint(2, (count,), generator=generator) * 2.0 - 1.0
    zeros = torch.zeros(count) * signs if word == "signed_zeros" else torch.zeros(count)
    if word != "zero":
        # Fewer positive logits than K, so that rank K lies among the zeros.
        places = torch.randperm(count, generator=generator)[: max(0, topk - 3) * 3 // 4]
        zeros[places] = values[places].abs() + 0.1
    return zeros
