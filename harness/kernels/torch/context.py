"""Attention of new tokens over one chunk of cached context, as a varlen prefill kernel does it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from harness.core.seams import seam
from harness.memory.bounds import check_indices

LOG2_E = math.log2(math.e)


def context_attention(
    q: Tensor, k: Tensor, v: Tensor, query_start_loc: Tensor, chunk_start_loc: Tensor, *, scale: float
) -> tuple[Tensor, Tensor]:
    """Full attention of each request's new tokens over its context tokens in this chunk; lse of empty rows is -inf.

    q: [T, H, Dq], k: [C, H, Dq], v: [C, H, V], query_start_loc and chunk_start_loc: [B + 1] int32 offsets into the
    T and C rows -> out [T, H, V] in q's dtype, lse [H, T] float32 (natural logarithm). Not written: out of tokens
    without keys in the chunk, and both outputs of tokens past query_start_loc[-1].
    """
    return _attend(q, k, v, query_start_loc, chunk_start_loc, scale, float("-inf"))


def context_attention_plus_inf(
    q: Tensor, k: Tensor, v: Tensor, query_start_loc: Tensor, chunk_start_loc: Tensor, *, scale: float
) -> tuple[Tensor, Tensor]:
    """As `context_attention` with FlashAttention-2's convention: the lse of a row without keys is +inf."""
    return _attend(q, k, v, query_start_loc, chunk_start_loc, scale, float("inf"))


def context_attention_ragged(
    q: Tensor, k: Tensor, v: Tensor, query_start_loc: Tensor, chunk_start_loc: Tensor, *, scale: float
) -> tuple[Tensor, Tensor]:
    """As `context_attention`, around a backend whose lse is [T, H] and of base 2, as FlashInfer's ragged ones are."""
    out, lse = _attend(q, k, v, query_start_loc, chunk_start_loc, scale, float("-inf"))
    as_returned = (lse * LOG2_E).T.contiguous()
    return out, by_head(natural_log(as_returned))


@seam("merge.lse-base-2")
def natural_log(lse_base_2: Tensor) -> Tensor:
    """A log-sum-exp of base 2 as a natural one, which is what a merge weighs with (PR 52796)."""
    return lse_base_2 * (1 / LOG2_E)


@seam("merge.untransposed-lse")
def by_head(lse_by_token: Tensor) -> Tensor:
    """A log-sum-exp [T, H] as [H, T]: transposed, as the same bytes read in another shape belong to other tokens
    (PR 26397)."""
    return lse_by_token.T.contiguous()


@seam("context.stale-lse-of-empty-rows")
def mark_empty_rows(lse: Tensor, rows: slice, value: float) -> None:
    """Say in `lse` [H, T] that `rows` have no keys in this chunk.

    The number of chunks follows the longest context, so shorter ones have such rows in later chunks
    (sgl-project/sglang#22688).
    """
    lse[:, rows] = value


@seam("merge.empty-lse-finite")
def empty_row_lse(convention: float) -> float:
    """The log-sum-exp written for a row without keys: an infinity, which tells a merge that there is nothing."""
    return convention


def _attend(
    q: Tensor, k: Tensor, v: Tensor, query_start_loc: Tensor, chunk_start_loc: Tensor, scale: float, empty_lse: float
) -> tuple[Tensor, Tensor]:
    num_tokens, num_heads, _ = q.shape
    out = torch.empty((num_tokens, num_heads, v.shape[-1]), dtype=q.dtype, device=q.device)
    lse = torch.empty((num_heads, num_tokens), dtype=torch.float32, device=q.device)
    query_starts = check_indices(query_start_loc, num_tokens + 1, "query_start_loc").tolist()
    chunk_starts = check_indices(chunk_start_loc, k.shape[0] + 1, "chunk_start_loc").tolist()
    for request in range(len(query_starts) - 1):
        rows = slice(query_starts[request], query_starts[request + 1])
        keys = slice(chunk_starts[request], chunk_starts[request + 1])
        if keys.start >= keys.stop:
            mark_empty_rows(lse, rows, empty_row_lse(empty_lse))
            continue
        queries = q[rows].float().transpose(0, 1) * scale
        scores = queries @ k[keys].float().permute(1, 2, 0)
        rows_lse = scores.logsumexp(dim=-1)
        weights = (scores - rows_lse[..., None]).exp()
        out[rows] = (weights @ v[keys].float().transpose(0, 1)).transpose(0, 1).to(out.dtype)
        lse[:, rows] = rows_lse
    return out, lse
