"""The choice of the largest logits in torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_poison.allocations import only_writes

from harness.core.seams import seam
from harness.kernels.checks import check_range
from harness.memory.bounds import check_indices
from harness.ops.parts.buffer_rows import row_lengths


def select_topk(
    logits: Tensor, seq_lens: Tensor, *, topk: int, out: Tensor | None = None
) -> Tensor:
    """Positions [T, K] int32 of the K largest logits [T, L] float32 of each row, -1 for none; in
    `out` if given.

    Rows are the query tokens of requests of lengths seq_lens [B] int32, T / B of each.

    `out` [T, K] is int32. Raises IllegalAddress for a length past the logits.
    """
    check_range("rows of logits for each of seq_lens", len(logits) % len(seq_lens), 0, 0)
    lengths = row_lengths(seq_lens, len(logits) // len(seq_lens))
    check_indices(lengths, logits.shape[1] + 1, "seq_lens")
    if out is None:
        out = torch.empty(len(logits), topk, dtype=torch.int32, device=logits.device)
    _store_chosen(out, logits, lengths)
    return out


@only_writes
def _store_chosen(out: Tensor, logits: Tensor, lengths: Tensor) -> None:
    """Write the chosen positions of logits [T, L] float32 into `out` [T, K] int32, for rows of
    `lengths` [T] int32.
    """
    store_rows(out, take_topk(logits, lengths, out), lengths)


@seam("sparse.topk-from-unwritten", "sparse.ties-by-arrival")
def take_topk(logits: Tensor, lengths: Tensor, before: Tensor) -> Tensor:
    """The positions [T, K] int32 of the K largest of the first `lengths` [T] int32 of logits [T, L]
    float32 of each row, -1 for none.

    `before` [T, K] int32 is what the output's memory held. Every element is written, also when
    logits are NaN and comparisons choose nothing (vllm-project/vllm#49896). Equal logits give the
    same positions in each launch: scores are sums of ReLUs, and many are exactly 0
    (sgl-project/sglang#31115).
    """
    out = torch.full_like(before, -1)
    topk = before.shape[1]
    positions = torch.arange(logits.shape[1], device=logits.device)
    # A live logit of -inf comes before what is past the length.
    live = logits.clamp(min=torch.finfo(logits.dtype).min)
    # A fill and no product: logits past the length are unwritten, and 0 times NaN is NaN.
    best = live.masked_fill(positions >= lengths[:, None], -torch.inf).topk(
        min(topk, logits.shape[1]), dim=-1
    )
    chosen = torch.where(best.indices < lengths[:, None], best.indices, -1)
    out[:, : chosen.shape[1]] = chosen.to(torch.int32)
    return out


@seam("sparse.rows-of-batch-width")
def store_rows(out: Tensor, rows: Tensor, lengths: Tensor) -> None:
    """Copy rows [T, K] int32 into `out` [T, K], with the stride of `out`.

    A captured graph reads at the stride of the buffer, however short the rows of a batch are:
    `lengths` [T] (vllm-project/vllm#51318).
    """
    out.copy_(rows)
