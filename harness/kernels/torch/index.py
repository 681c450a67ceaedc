"""The stages before sparse attention: scores of an indexer over its paged keys, their top-k, and
its slots.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.core.seams import seam
from harness.kernels.checks import check_range, check_shapes
from harness.memory.bounds import check_indices

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
    page_size, num_columns = kv_cache.shape[1], block_table.shape[1]
    counts = (seq_lens.clamp(min=0) + page_size - 1) // page_size
    check_indices(counts, num_columns + 1, "pages of seq_lens")
    check_indices(first_requests(counts), num_requests, "request of a worker")
    is_page = torch.arange(num_columns, device=q.device) < counts[:, None]
    blocks = check_indices(
        torch.where(is_page, block_table, 0), kv_cache.shape[0], "block_table of the indexer"
    )
    keys = load_keys(kv_cache, blocks).flatten(1, 2)
    products = q.float() @ keys.unsqueeze(1).transpose(-1, -2)
    scores = (products.relu_() * weights.unsqueeze(-1)).sum(2).flatten(0, 1)
    logits = torch.empty(scores.shape, dtype=torch.float32, device=q.device)
    written = (
        torch.arange(keys.shape[1], device=q.device) < row_lengths(seq_lens, num_tokens)[:, None]
    )
    # Keys past the length are uninitialised memory. Their scores are computed and dropped.
    return logits.copy_(torch.where(written, scores, logits))


def row_lengths(seq_lens: Tensor, num_tokens: int) -> Tensor:
    """The keys [B * S] that each query token sees, of requests of lengths seq_lens [B] with S
    tokens each.
    """
    steps = torch.arange(1 - num_tokens, 1, device=seq_lens.device, dtype=seq_lens.dtype)
    return (seq_lens[:, None] + steps).clamp(min=0).flatten()


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
    """The keys [B, M, P, I] float32 of blocks [B, M] int64, scaled; see `index_logits` for the
    types of a cache.
    """
    pages = load_pages(kv_cache, blocks)
    if kv_cache.dtype != torch.uint8:
        return pages.float()
    page_size, size = kv_cache.shape[1], kv_cache.shape[2]
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
    """The pages [B, M, P, W] of blocks [B, M] int64 of a cache [N, P, W] of any dtype.

    Torch forms offsets in 64 bits. Others choose 32 where they suffice. That depends on the span of
    the cache, from its first element to its last, and not on the number of its elements
    (ROCm/aiter#4673).
    """
    return kv_cache[blocks]


@seam("sparse.scales-of-first-layer")
def page_scales(kv_cache: Tensor) -> Tensor:
    """The scales [N, P] float32 of the records [N, P, I + 4] uint8 of one layer: behind the keys of
    each page.

    An offset given to `as_strided` counts from the start of the memory, not of the layer
    (ROCm/ATOM#1466).
    """
    keys = kv_cache.shape[1] * (kv_cache.shape[2] - SCALE_BYTES)
    return kv_cache.flatten(1)[:, keys:].view(torch.float32)


def select_topk(
    logits: Tensor, seq_lens: Tensor, *, topk: int, out: Tensor | None = None
) -> Tensor:
    """Positions [T, K] int32 of the K largest logits [T, L] float32 of each row, -1 for none; in
    `out` if given.

    Rows are the query tokens of requests of lengths seq_lens [B] int32, T / B of each.
    """
    check_range("rows of logits for each of seq_lens", len(logits) % len(seq_lens), 0, 0)
    lengths = row_lengths(seq_lens, len(logits) // len(seq_lens))
    check_indices(lengths, logits.shape[1] + 1, "seq_lens")
    if out is None:
        out = torch.empty(len(logits), topk, dtype=torch.int32, device=logits.device)
    store_rows(out, take_topk(logits, lengths, out), lengths)
    return out


@seam("sparse.topk-from-unwritten", "sparse.ties-by-arrival")
def take_topk(logits: Tensor, lengths: Tensor, before: Tensor) -> Tensor:
    """The positions [T, K] int32 of the K largest of the first `lengths` [T] logits of each row, -1
    for none.

    `before` [T, K] is what the output's memory held. Every element is written, also when logits are
    NaN and comparisons choose nothing (PR 49896). Equal logits give the same positions in each
    launch: scores are sums of ReLUs, and many are exactly 0 (sgl-project/sglang#31115).
    """
    out, topk = torch.full_like(before, -1), before.shape[1]
    positions = torch.arange(logits.shape[1], device=logits.device)
    # A live logit of -inf comes before what is past the length.
    live = logits.clamp(min=torch.finfo(logits.dtype).min)
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
    `lengths` [T] (PR 51318).
    """
    out.copy_(rows)


def map_indices(
    positions: Tensor,
    block_table: Tensor,
    requests: Tensor,
    *,
    page_size: int,
    out: Tensor | None = None,
) -> Tensor:
    """Slots [T, K] int32 of positions [T, K] int32; -1 stays -1; in `out` if given.

    block_table [B, M] int32, requests [T or more] int32. Raises IllegalAddress for a position past
    the table.
    """
    check_range("page_size", page_size, 1)
    check_range("tokens of requests", len(requests), len(positions))
    if out is None:
        out = torch.empty(positions.shape, dtype=torch.int32, device=positions.device)
    rows = rows_to_map(positions, requests)
    given, target = rows_at(positions, rows), rows_at(out, rows)
    columns, is_position = columns_of(given, page_size, block_table.shape[1])
    table = block_table[check_indices(requests[:rows], len(block_table), "requests")]
    blocks = table.gather(1, check_indices(columns, block_table.shape[1], "block_table column"))
    target.copy_(torch.where(is_position, blocks * page_size + given % page_size, -1))
    return out


@seam("sparse.conversion-of-whole-batch")
def rows_to_map(positions: Tensor, requests: Tensor) -> int:
    """How many rows are mapped: those of positions [T, K], not all tokens of the batch, `requests`
    (PR 48611).
    """
    return len(positions)


@seam("sparse.minus-one-looked-up")
def columns_of(positions: Tensor, page_size: int, num_columns: int) -> tuple[Tensor, Tensor]:
    """The column [T, K] of the table for each of positions [T, K] int32, and whether it is a
    position.

    -1 has no column; 0 is looked up in its place and dropped (sgl-project/sglang#32771).
    """
    is_position = positions >= 0
    return torch.where(is_position, positions // page_size, 0), is_position


def rows_at(tensor: Tensor, rows: int) -> Tensor:
    """The first rows [rows, K] at the address of a tensor [T, K], past its end too: a kernel sees
    no end.
    """
    if rows == len(tensor):
        return tensor
    last = int(tensor.storage_offset()) + (rows - 1) * tensor.stride(0) + tensor.shape[1] - 1
    check_indices(
        torch.tensor([last]),
        tensor.untyped_storage().nbytes() // tensor.element_size(),
        "row of indices",
    )
    return tensor.as_strided((rows, tensor.shape[1]), tensor.stride())
