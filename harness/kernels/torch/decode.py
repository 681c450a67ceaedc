"""Paged MLA decode in torch with the memory behaviour of the real kernels.

Whole pages of 64 slots are read tile by tile, unused slots included; pieces of a request (see `torch_plan`) leave
partial results in a scratch buffer, and a combine step writes the rows that have keys. Outputs and scratch come from
`torch.empty`; what is not written keeps whatever was there. The variants differ where real kernels differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.core.ops import PAGE_SIZE, latent_rank
from harness.core.seams import seam
from harness.kernels.torch.plan import MAX_SPLITS, SplitPlan, mla_decode_plan, num_pages, pages_per_chunk
from harness.memory.bounds import check_indices

MaskValues = Callable[[Tensor, Tensor], Tensor]
_MINUS_INF = float("-inf")


def mla_decode(
    q: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    kv_scale: float | Tensor | None = None,
    metadata: SplitPlan | None = None,
    window: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Selects used slots, and leaves rows without keys unwritten (kernel `tiled`, after Triton MLA and FlashMLA).

    q: [B, S, H, D], kv_cache: [N, 64, D] float32, bfloat16 or float8_e4m3fn (times kv_scale), block_table: [B, M]
    int32, seq_lens: [B] int32 -> out [B, S, H, R] in q's dtype, lse [B, H, S] float32 (natural logarithm).
    Query token s sees keys before seq_lens[b] - S + s + 1, and of these the last `window` only, if one is given; pages
    that no query sees are read all the same. Raises IllegalAddress when a table entry it needs, or a
    plan, points outside its tensor. A plan made for shorter lengths leaves out later pages.
    """
    call = _Call(q, kv_cache, block_table, seq_lens, scale, kv_scale, metadata, window)
    return _decode(call, mask_unused_values, write_empty_rows=False)


def mla_decode_multiply(
    q: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    kv_scale: float | Tensor | None = None,
    metadata: SplitPlan | None = None,
    window: int | None = None,
) -> tuple[Tensor, Tensor]:
    """As `mla_decode`, but unused values are multiplied by a probability of 0 (kernel `tiled-multiply`).

    So a NaN or Inf in an unused slot of a page it reads reaches live rows: it needs finite tails
    (flashinfer-ai/flashinfer#941, PR 43961).
    """
    call = _Call(q, kv_cache, block_table, seq_lens, scale, kv_scale, metadata, window)
    return _decode(call, keep_unused_values, write_empty_rows=False)


def mla_decode_identity(
    q: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    kv_scale: float | Tensor | None = None,
    metadata: SplitPlan | None = None,
    window: int | None = None,
) -> tuple[Tensor, Tensor]:
    """As `mla_decode`, but rows without keys get the empty attention: out 0, lse -inf (kernel `tiled-identity`)."""
    call = _Call(q, kv_cache, block_table, seq_lens, scale, kv_scale, metadata, window)
    return _decode(call, mask_unused_values, write_empty_rows=True)


def mla_decode_prefetch(
    q: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    kv_scale: float | Tensor | None = None,
    metadata: SplitPlan | None = None,
    window: int | None = None,
) -> tuple[Tensor, Tensor]:
    """As `mla_decode`, but looks up the last page of every request, empty ones too (kernel `tiled-prefetch`).

    FlashMLA's FP8 decode does so, and faults when a padded request's table holds -1 (PR 35431).
    """
    last_page = (num_pages(seq_lens) - 1).clamp(min=0)
    check_indices(block_table.gather(1, last_page[:, None]), kv_cache.shape[0], "block_table")
    call = _Call(q, kv_cache, block_table, seq_lens, scale, kv_scale, metadata, window)
    return _decode(call, mask_unused_values, write_empty_rows=False)


def mla_decode_counted(
    q: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    kv_scale: float | Tensor | None = None,
    metadata: SplitPlan | None = None,
    window: int | None = None,
    workspace: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As `mla_decode`, but the piece of a request that arrives last combines (kernel `tiled-counted`).

    Its planner counts pieces in chunks of pages when it is told the cache's type, as those of persistent kernels do.

    Arrivals are counted in `workspace`, int32 words of which the kernel is given the address alone: word b is request
    b's, zero on entry and on return (PR 25520). Without one the kernel makes its own. TRT-LLM's decode
    works so. Raises IllegalAddress when the memory ends before the last request's word.
    """
    call = _Call(q, kv_cache, block_table, seq_lens, scale, kv_scale, metadata, window)
    num_requests = q.shape[0]
    if workspace is None:
        workspace = torch.zeros(num_requests, dtype=torch.int32, device=q.device)
    return _decode(call, mask_unused_values, write_empty_rows=False, counters=_words_at(workspace, num_requests))


@seam("kv.tail-masked-by-multiply")
def mask_unused_values(values: Tensor, used: Tensor) -> Tensor:
    """Select: values [A, 64, R] of slots that are not `used` [A, 64] become 0, whatever they held."""
    return values.masked_fill(~used[..., None], 0.0)


def keep_unused_values(values: Tensor, used: Tensor) -> Tensor:
    """Trust that a probability of 0 removes unused values: right for finite ones only."""
    return values


@seam("index.page-offset-32-bit")
def page_offsets(blocks: Tensor, page_stride: int) -> Tensor:
    """Where pages begin, in elements from the start of the cache: blocks [A] int32 -> [A] int64.

    Block ids have 32 bits, and their product with the stride of a large pool has not: it is formed in 64 bits
    (flashinfer-ai/flashinfer#3136).
    """
    return blocks.to(torch.int64) * page_stride


@seam("decode.zero-length-row-nan")
def divide_by_sum(accumulated: Tensor, total: Tensor) -> Tensor:
    """accumulated [..., R] / total [...]: a row whose exponents sum to 0 has no keys and stays 0."""
    return accumulated / torch.where(total == 0, 1.0, total)[..., None]


@dataclass(slots=True)
class _Call:
    q: Tensor
    kv_cache: Tensor
    block_table: Tensor
    seq_lens: Tensor
    scale: float
    kv_scale: float | Tensor | None
    metadata: SplitPlan | None
    window: int | None

    @property
    def cache_scale(self) -> float | Tensor:
        return 1.0 if self.kv_scale is None else self.kv_scale

    def key_limits(self) -> Tensor:
        """[B, S] int64: how many keys each query token sees."""
        num_query_tokens = self.q.shape[1]
        steps = torch.arange(1 - num_query_tokens, 1, device=self.q.device)
        return self.seq_lens.to(torch.int64)[:, None] + steps


def _decode(
    call: _Call, mask_values: MaskValues, *, write_empty_rows: bool, counters: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    num_requests, num_query_tokens, num_heads, head_dim = call.q.shape
    out_shape = (num_requests, num_query_tokens, num_heads, latent_rank(head_dim))
    out = torch.empty(out_shape, dtype=call.q.dtype, device=call.q.device)
    lse = torch.empty((num_requests, num_heads, num_query_tokens), dtype=torch.float32, device=call.q.device)
    plan = call.metadata or mla_decode_plan(call.seq_lens, num_heads=num_heads)
    if counters is not None:
        # Every block of the grid looks up its request's counter, before it knows whether there is work for it.
        check_indices(plan.work[:, 0], num_requests, "metadata.work request")
    partial_out, partial_lse = _attend(call, plan, mask_values)
    arrived = plan.num_splits if counters is None else count_arrivals(counters, plan.num_splits)
    rows, rows_lse = _combine(partial_out, partial_lse, arrived.clamp(min=0), plan.room)
    rows = (rows * call.cache_scale).view(out_shape).to(out.dtype)
    rows_lse = rows_lse.view(out_shape[:3])
    if write_empty_rows:
        out.copy_(rows)
        lse.copy_(rows_lse.transpose(1, 2))
    else:
        has_keys = call.key_limits() > 0
        if counters is not None:
            has_keys &= (arrived >= 0)[:, None]
        out[has_keys] = rows[has_keys]
        lse.transpose(1, 2)[has_keys] = rows_lse[has_keys]
    return out, lse


def count_arrivals(counters: Tensor, num_splits: Tensor) -> Tensor:
    """How many pieces each request combines, [B] int64, -1 where none is the last; leaves the counters as they end.

    Each piece takes a ticket from its request's counter. The one that draws num_splits - 1 combines what has arrived
    and resets the counter. Where that began at c > 0, it comes c pieces too early, or never.
    """
    start, splits = counters.to(torch.int64), num_splits.to(torch.int64)
    in_time = (start >= 0) & (start < splits)
    arrived = torch.where(in_time, splits - start, -1)
    counters.copy_(torch.where(in_time, start, (splits - 1).clamp(min=0)))
    # Nobody arrives for an empty request, whose row stays unwritten anyway.
    return torch.where(splits > 0, arrived, 0)


def _words_at(workspace: Tensor, count: int) -> Tensor:
    """The first `count` words at the address of `workspace`, however long that tensor is: a kernel sees no end."""
    words = workspace.untyped_storage().nbytes() // workspace.element_size() - int(workspace.storage_offset())
    check_indices(torch.tensor([count - 1]), words, "workspace word")
    return workspace.as_strided((count,), (1,))


def _attend(call: _Call, plan: SplitPlan, mask_values: MaskValues) -> tuple[Tensor, Tensor]:
    """Partial attention of each scheduled piece: [B * room, S * H, R] and its lse [B * room, S * H], both scratch."""
    num_requests, num_query_tokens, num_heads, head_dim = call.q.shape
    work, unit = plan.work, pages_per_chunk(call.kv_cache.element_size()) if plan.in_chunks else 1
    rows, rank = num_query_tokens * num_heads, latent_rank(head_dim)
    partial_out = torch.empty((num_requests * plan.room, rows, rank), dtype=torch.float32, device=work.device)
    partial_lse = torch.empty((num_requests * plan.room, rows), dtype=torch.float32, device=work.device)
    items = (work[:, 1] < work[:, 2]).nonzero().flatten()
    request = check_indices(work[items, 0], num_requests, "metadata.work request")
    scratch = request * plan.room + check_indices(items % MAX_SPLITS, plan.room, "metadata: piece in the scratch")
    begin = work[items, 1].to(torch.int64) * unit
    end = torch.minimum(work[items, 2].to(torch.int64) * unit, num_pages(call.seq_lens)[request])
    queries = call.q.float().reshape(num_requests, rows, head_dim)[request] * (call.scale * call.cache_scale)
    limits = call.key_limits().repeat_interleave(num_heads, dim=1)[request]
    seq_lens = call.seq_lens[request]
    state = _State.empty(items.shape[0], rows, rank, work.device)
    longest = int((end - begin).max()) if items.numel() else 0
    for offset in range(longest):
        active = (begin + offset < end).nonzero().flatten()
        page = begin[active] + offset
        tile = _load_tile(call, request[active], page)
        positions = page[:, None] * PAGE_SIZE + torch.arange(PAGE_SIZE, device=work.device)
        scores = torch.bmm(queries[active], tile.transpose(1, 2))
        seen = limits[active][..., None]
        scores.masked_fill_(positions[:, None, :] >= seen, _MINUS_INF)
        used = positions < seq_lens[active][:, None]
        if call.window is not None:
            scores.masked_fill_(positions[:, None, :] < seen - call.window, _MINUS_INF)
            used &= positions >= limits[active].amin(dim=1, keepdim=True) - call.window
        values = mask_values(tile[..., :rank], used)
        state.add(active, scores, values)
    partial_out[scratch] = state.accumulated / torch.where(state.total == 0, 1.0, state.total)[..., None]
    partial_lse[scratch] = _finite_or_zero(state.maximum) + state.total.log()
    return partial_out, partial_lse


@dataclass(slots=True)
class _State:
    """Running softmax of each piece: maximum and total [A, rows], accumulated [A, rows, R]."""

    maximum: Tensor
    total: Tensor
    accumulated: Tensor

    @classmethod
    def empty(cls, num_items: int, rows: int, rank: int, device: torch.device) -> _State:
        return cls(
            torch.full((num_items, rows), _MINUS_INF, device=device),
            torch.zeros((num_items, rows), device=device),
            torch.zeros((num_items, rows, rank), device=device),
        )

    def add(self, active: Tensor, scores: Tensor, values: Tensor) -> None:
        """Fold one page of the pieces `active` in: scores [A', rows, 64], values [A', 64, R]."""
        before = self.maximum[active]
        maximum = torch.maximum(before, scores.amax(dim=-1))
        # A row that saw no key yet has maximum -inf, and -inf - -inf is NaN.
        shift = _finite_or_zero(maximum)
        weights = (scores - shift[..., None]).exp_()
        decay = (before - shift).exp()
        self.maximum[active] = maximum
        self.total[active] = self.total[active] * decay + weights.sum(dim=-1)
        self.accumulated[active] = torch.baddbmm(self.accumulated[active] * decay[..., None], weights, values)


def _load_tile(call: _Call, request: Tensor, page: Tensor) -> Tensor:
    """The whole page `page` of each request as float32 [A, 64, D], unscaled; used slots or not."""
    column = check_indices(page, call.block_table.shape[1], "block_table column")
    stride = call.kv_cache.stride(0)
    offsets = page_offsets(call.block_table[request, column], stride)
    block = check_indices(offsets.div(stride, rounding_mode="floor"), call.kv_cache.shape[0], "block_table")
    if call.kv_cache.dtype != torch.float8_e4m3fn:
        return call.kv_cache.index_select(0, block).float()
    # Older torch cannot index fp8, and a table of the 256 values is three times as fast as converting.
    raw = call.kv_cache.view(torch.uint8).index_select(0, block)
    table = torch.arange(256, dtype=torch.uint8, device=raw.device).view(torch.float8_e4m3fn).float()
    return table.index_select(0, raw.flatten().int()).view(raw.shape)


def _combine(partial_out: Tensor, partial_lse: Tensor, num_splits: Tensor, room: int) -> tuple[Tensor, Tensor]:
    """Merge the pieces of each request: out [B, S * H, R] and lse [B, S * H]; rows without keys are 0 and -inf."""
    num_requests = num_splits.shape[0]
    # A negative count runs the loop of a real combine zero times; one too large reads past the scratch.
    counts = check_indices(num_splits.clamp(min=0), room + 1, "metadata.num_splits")
    used = torch.arange(room, device=counts.device) < counts[:, None]
    lse = partial_lse.view(num_requests, room, -1).masked_fill(~used[..., None], _MINUS_INF)
    shift = _finite_or_zero(lse.amax(dim=1))
    weights = (lse - shift[:, None]).exp()
    total = weights.sum(dim=1)
    pieces = partial_out.view(num_requests, room, *partial_out.shape[1:])
    selected = pieces.masked_fill(~used[..., None, None], 0.0)
    accumulated = (selected * weights[..., None]).sum(dim=1)
    return divide_by_sum(accumulated, total), shift + total.log()


def _finite_or_zero(maximum: Tensor) -> Tensor:
    return maximum.masked_fill(maximum == _MINUS_INF, 0.0)
