"""Attention of new tokens over one chunk of cached context, as a varlen prefill kernel does it."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor
from torch_poison.allocations import only_writes

from harness.core.seams import seam
from harness.kernels.checks import check_rising, check_shapes
from harness.memory.bounds import check_indices

LOG2_E = math.log2(math.e)


def context_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_start_loc: Tensor,
    chunk_start_loc: Tensor,
    *,
    scale: float,
    empty_lse: float | None = float("-inf"),
) -> tuple[Tensor, Tensor]:
    """Full attention of each request's new tokens over its context tokens in this chunk.

    q: [T, H, Dq], k: [C, H, Dq], v: [C, H, V], query_start_loc and chunk_start_loc: [B + 1] int32
    offsets into the T and C rows -> out [T, H, V] in q's dtype, lse [H, T] float32 (natural
    logarithm), `empty_lse` in rows without keys in the chunk. Not written: out of such rows, their
    lse if `empty_lse` is None, and both outputs of tokens past query_start_loc[-1].
    """
    starts = ("query_start_loc", query_start_loc, "B"), ("chunk_start_loc", chunk_start_loc, "B")
    check_shapes(("q", q, "THE"), ("k", k, "CHE"), ("v", v, "CHV"), *starts)
    num_tokens, num_heads, _ = q.shape
    out = torch.empty((num_tokens, num_heads, v.shape[-1]), dtype=q.dtype, device=q.device)
    lse = torch.empty((num_heads, num_tokens), dtype=torch.float32, device=q.device)
    # Read on the host: a batch with prompts is never captured.
    query_starts = check_indices(query_start_loc, num_tokens + 1, "query_start_loc").tolist()
    chunk_starts = check_indices(chunk_start_loc, k.shape[0] + 1, "chunk_start_loc").tolist()
    check_rising("query_start_loc", query_starts)
    check_rising("chunk_start_loc", chunk_starts)
    for request in range(len(query_starts) - 1):
        rows = slice(query_starts[request], query_starts[request + 1])
        keys = slice(chunk_starts[request], chunk_starts[request + 1])
        if keys.start >= keys.stop:
            if empty_lse is not None:
                mark_empty_rows(lse, rows, empty_row_lse(empty_lse))
            continue
        _attend(q[rows], k[keys], v[keys], scale, out[rows], lse[:, rows])
    return out, lse


@only_writes
def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, out: Tensor, lse: Tensor) -> None:
    """Write out [S, H, V] and lse [H, S] of one request's queries q [S, H, Dq] over its keys
    k [C, H, Dq] and values v [C, H, V]; lse is float32, the others bfloat16 or float32.
    """
    queries = q.float().transpose(0, 1) * scale
    scores = queries @ k.float().permute(1, 2, 0)
    rows_lse = scores.logsumexp(dim=-1)
    weights = (scores - rows_lse[..., None]).exp()
    out.copy_((weights @ v.float().transpose(0, 1)).transpose(0, 1))
    lse.copy_(rows_lse)


context_attention_plus_inf = partial(context_attention, empty_lse=float("inf"))
"""Kernel `torch-plus-inf`: FlashAttention-2's convention for rows without keys."""
context_attention_unmarked = partial(context_attention, empty_lse=None)
"""Kernel `torch-unmarked`: rows without keys are left as they are, lse included."""


def context_attention_ragged(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_start_loc: Tensor,
    chunk_start_loc: Tensor,
    *,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """As `context_attention`, around a backend with an lse [T, H] of base 2, such as FlashInfer's
    ragged wrapper.

    q [T, H, E'], k [C, H, E'] and v [C, H, V] bfloat16 or float32, query_start_loc [B + 1] and
    chunk_start_loc [B + 1] int32 -> out [T, H, V] in q's type, lse [H, T] float32 (natural
    logarithm).
    """
    out, lse = context_attention(q, k, v, query_start_loc, chunk_start_loc, scale=scale)
    as_returned = (lse * LOG2_E).T.contiguous()
    return out, by_head(natural_log(as_returned))


@seam("merge.lse-base-2")
def natural_log(lse_base_2: Tensor) -> Tensor:
    """Convert lse_base_2 [T, H] float32 to the natural logarithm, which a merge
    expects (vllm-project/vllm#52796).
    """
    return lse_base_2 * (1 / LOG2_E)


@seam("merge.untransposed-lse")
def by_head(lse_by_token: Tensor) -> Tensor:
    """Transpose lse_by_token [T, H] float32 to [H, T].

    A view of the same bytes would mix up tokens (vllm-project/vllm#26397).
    """
    return lse_by_token.T.contiguous()


@seam("context.stale-lse-of-empty-rows")
def mark_empty_rows(lse: Tensor, rows: slice, value: float) -> None:
    """Mark `rows` of `lse` [H, T] that have no keys in this chunk.

    The longest context sets the number of chunks, so shorter ones have no keys in later chunks
    (sgl-project/sglang#22688).

    lse is float32; `value` is -inf or +inf by the kernel's convention.
    """
    lse[:, rows] = value


@seam("merge.empty-lse-finite")
def empty_row_lse(convention: float) -> float:
    """The lse of a row without keys: an infinity, by which a merge recognizes an empty side."""
    return convention
