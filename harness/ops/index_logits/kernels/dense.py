"""Logits of the indexer in torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_poison.allocations import only_writes

from harness.core.seams import seam
from harness.kernels.checks import check_shapes
from harness.memory.bounds import check_indices
from harness.ops.parts.buffer_rows import row_lengths

WORKERS = 8
"""Workers among which the pages of a batch are divided, as the blocks of a persistent kernel."""


SCALE_BYTES = 4
"""Bytes of the scale of a key in an `indexer_planar` record."""


def index_logits(
    q: Tensor, weights: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor
) -> Tensor:
    """Scores [B * S, M * P] float32 of the keys of each query token; unwritten past a row's last
    key.

    q [B, S, X, I], weights [B, S, X] float32, kv_cache [N, P, I] of floats or [N, P, I + 4] uint8
    `indexer_planar`, block_table [B, M] and seq_lens [B] int32. Entries of the table past the last
    page are not looked up.
    """
    tables = ("block_table", block_table, "BM"), ("seq_lens", seq_lens, "B")
    check_shapes(("q", q, "BSXI"), ("weights", weights, "BSX"), *tables)
    num_requests, num_tokens = q.shape[:2]
    shape = num_requests * num_tokens, block_table.shape[1] * kv_cache.shape[1]
    logits = torch.empty(shape, dtype=torch.float32, device=q.device)
    _store_scores(logits, q, weights, kv_cache, block_table, seq_lens)
    return logits


@only_writes
def _store_scores(
    logits: Tensor,
    q: Tensor,
    weights: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
) -> None:
    """Write the scores into `logits` [B * S, M * P] float32, up to each row's last key."""
    num_requests, num_tokens = q.shape[:2]
    page_size = kv_cache.shape[1]
    num_columns = block_table.shape[1]
    counts = (seq_lens.clamp(min=0) + page_size - 1) // page_size
    check_indices(counts, num_columns + 1, "pages of seq_lens")
    # Only looked up, as torch needs no workers: the fault is a search past the last request
    # (deepseek-ai/DeepGEMM#353).
    check_indices(first_requests(counts), num_requests, "request of a worker")
    is_page = torch.arange(num_columns, device=q.device) < counts[:, None]
    # Padding of the table may name no page at all. It is replaced first, and never looked up.
    blocks = check_indices(
        torch.where(is_page, block_table, 0), kv_cache.shape[0], "block_table of the indexer"
    )
    keys = load_keys(kv_cache, blocks).flatten(1, 2)
    products = q.float() @ keys.unsqueeze(1).transpose(-1, -2)
    scores = (products.relu_() * weights.unsqueeze(-1)).sum(2).flatten(0, 1)
    written = (
        torch.arange(keys.shape[1], device=q.device) < row_lengths(seq_lens, num_tokens)[:, None]
    )
    # Keys past the length are uninitialised memory. Their scores are computed and dropped.
    logits.copy_(torch.where(written, scores, logits))


@seam("sparse.plan-of-empty-batch")
def first_requests(counts: Tensor) -> Tensor:
    """The request [W] int64 in which each worker starts, for requests of counts [B] pages.

    A batch without pages has no request to find. Its workers start in the first
    (deepseek-ai/DeepGEMM#353).
    """
    ends = counts.cumsum(0)
    starts = torch.arange(WORKERS, device=counts.device) * ends[-1] // WORKERS
    return torch.where(ends[-1] > 0, torch.searchsorted(ends, starts, right=True), 0)


def load_keys(kv_cache: Tensor, blocks: Tensor) -> Tensor:
    """The keys [B, M, P, I] float32 of blocks [B, M] int64, scaled.

    kv_cache [N, P, I] is float32 or bfloat16, or [N, P, I + 4] uint8: records of e4m3 keys, then a
    float32 scale each.
    """
    pages = load_pages(kv_cache, blocks)
    if kv_cache.dtype != torch.uint8:
        return pages.float()
    page_size = kv_cache.shape[1]
    size = kv_cache.shape[2]
    codes = (
        pages.flatten(-2)[..., : page_size * (size - SCALE_BYTES)]
        .contiguous()
        .view(torch.float8_e4m3fn)
    )
    return codes.float().view(*blocks.shape, page_size, -1) * page_scales(kv_cache)[
        blocks
    ].unsqueeze(-1)


@seam("sparse.width-by-size", "sparse.pages-of-replaced-manager")
def load_pages(kv_cache: Tensor, blocks: Tensor) -> Tensor:
    """The pages [B, M, P, W] of blocks [B, M] int64 of kv_cache [N, P, W], in its dtype.

    Torch forms offsets in 64 bits. Others choose 32 where they suffice. That depends on the span of
    the cache, from its first element to its last, and not on the number of its elements
    (ROCm/aiter#4673).
    """
    return kv_cache[blocks]


@seam("sparse.scales-of-first-layer")
def page_scales(kv_cache: Tensor) -> Tensor:
    """The scales [N, P] float32 of one layer's records, behind the keys of each page:
    kv_cache [N, P, I + 4] uint8.

    An offset given to `as_strided` counts from the start of the memory, not of the layer
    (ROCm/ATOM#1466).
    """
    keys = kv_cache.shape[1] * (kv_cache.shape[2] - SCALE_BYTES)
    return kv_cache.flatten(1)[:, keys:].view(torch.float32)
