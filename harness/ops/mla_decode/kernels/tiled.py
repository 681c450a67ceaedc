"""Paged MLA decode in torch with the memory behaviour of the real kernels.

Whole pages are read tile by tile, unused slots included. Each piece of a request (see
:mod:`harness.ops.mla_decode_plan.kernels.tiled`) leaves a partial result in a scratch buffer. A
combine step merges these and writes the rows that have keys. Outputs and scratch come from
`torch.empty`, so unwritten elements keep their old content.

Sparse decode attends to the slots that an indexer chose for each query token.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch_poison.allocations import only_writes

from harness.core.ops import PAGE_SIZE, latent_rank
from harness.core.seams import seam
from harness.kernels.checks import check_range, check_shapes
from harness.memory.bounds import check_indices
from harness.ops.mla_decode_plan.kernels.tiled import mla_decode_plan, pages_per_chunk
from harness.ops.parts.split_plan import MAX_SPLITS, SplitPlan, num_pages

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
    mask_values: bool = True,
    write_empty_rows: bool = False,
    prefetch_page: bool = False,
    count_pieces: bool = False,
    workspace: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Decode and leave rows without keys unwritten (kernel `tiled`, after Triton MLA and FlashMLA).

    q: [B, S, H, D], kv_cache: [N, P, D] float32, bfloat16 or float8_e4m3fn (times kv_scale),
    block_table: [B, M] int32, seq_lens: [B] int32 -> out [B, S, H, R] in q's dtype, lse [B, H, S]
    float32 (natural logarithm). Query token s sees the keys before seq_lens[b] - S + s + 1, with a
    `window` only the last `window` of them. Pages that no query sees are read too. A plan made for
    shorter lengths leaves out later pages. Raises IllegalAddress when a plan, a used table entry or
    `workspace` points outside its memory.

    The options are the ways in which real kernels differ; each has a kernel below. `mask_values`
    false multiplies unused values by a probability of 0. `write_empty_rows` gives rows without keys
    out 0 and lse -inf. `prefetch_page` looks up the last page of every request, empty ones too.
    With `count_pieces` the last piece of a request to arrive combines them. Arrivals are counted in
    `workspace`, int32 words that are zero on entry and on return; word b belongs to request b, and
    the kernel knows the address only.

    kv_scale is a float, or [1] float32 on the device; workspace [B or more] is int32.
    """
    _check_arguments(q, kv_cache, block_table, seq_lens, metadata)
    call = _Call(q, kv_cache, block_table, seq_lens, scale, kv_scale, window, mask_values)
    num_requests, num_query_tokens, num_heads, head_dim = q.shape
    if prefetch_page:
        _look_up_last_pages(call)
    counters = _words_at(workspace, num_requests) if count_pieces else None
    out_shape = (num_requests, num_query_tokens, num_heads, latent_rank(head_dim))
    out = torch.empty(out_shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(
        (num_requests, num_heads, num_query_tokens), dtype=torch.float32, device=q.device
    )
    plan = metadata or mla_decode_plan(seq_lens, num_heads=num_heads, page_size=kv_cache.shape[1])
    check_range("requests of metadata", len(plan.num_splits), num_requests, num_requests)
    if counters is not None:
        # Every block of the grid looks up its request's counter, before it knows whether there is
        # work for it.
        check_indices(plan.work[:, 0], num_requests, "metadata.work request")
    partial_out, partial_lse = _scratch(q, plan)
    _attend(call, plan, partial_out, partial_lse)
    arrived = plan.num_splits if counters is None else count_arrivals(counters, plan.num_splits)
    written = (
        seq_lens.new_ones(out.shape[:2], dtype=torch.bool)
        if write_empty_rows
        else call.key_limits() > 0
    )
    if counters is not None:
        # A request whose last piece never arrives is not combined.
        written &= (arrived >= 0)[:, None]
    rows, rows_lse = _combine(partial_out, partial_lse, arrived.clamp(min=0), plan.room)
    # The queries took the scale of the keys. The values are scaled here, once for each row.
    _write(out, (rows * call.cache_scale).view(out.shape), written)
    _write(lse.transpose(1, 2), lse_of_rows(rows_lse).view(out_shape[:3]), written)
    return out, lse


mla_decode_multiply = partial(mla_decode, mask_values=False)
"""Kernel `tiled-multiply`: a NaN or Inf in an unused slot of a page that it reads reaches live
rows, so it needs finite tails (flashinfer-ai/flashinfer#941, vllm-project/vllm#43961).
"""

mla_decode_identity = partial(mla_decode, write_empty_rows=True)
"""Kernel `tiled-identity`: rows without keys get the empty attention."""

mla_decode_prefetch = partial(mla_decode, prefetch_page=True)
"""Kernel `tiled-prefetch`: faults when a padded request's table holds -1, as FlashMLA's FP8 decode
does (vllm-project/vllm#35431).
"""

mla_decode_counted = partial(mla_decode, count_pieces=True)
"""Kernel `tiled-counted`, after TRT-LLM's decode (vllm-project/vllm#25520).

Its plan counts pieces in chunks of pages if the planner knows the cache's type, as plans of
persistent kernels do.
"""


def _check_arguments(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, metadata: SplitPlan | None
) -> None:
    """Raise ValueError for shapes that do not fit each other, or a plan for pages of another
    size.
    """
    tables = ("block_table", block_table, "BM"), ("seq_lens", seq_lens, "B")
    check_shapes(("q", q, "BSHD"), ("kv_cache", kv_cache, "NPD"), *tables)
    if metadata is not None:
        # A plan counts pages of one size.
        check_range("page_size beside metadata", kv_cache.shape[1], PAGE_SIZE, PAGE_SIZE)


@seam("kv.tail-masked-by-multiply")
def mask_unused_values(values: Tensor, used: Tensor) -> Tensor:
    """Set the values [A, P, R] of slots that are not `used` [A, P] to 0, in place, whatever they
    held.

    values is float32, used bool.
    """
    return values.masked_fill_(~used[..., None], 0.0)


@seam("index.page-offset-32-bit")
def page_offsets(blocks: Tensor, page_stride: int) -> Tensor:
    """Where pages begin, in elements from the start of the cache: blocks [A] int32 -> [A] int64.

    The product is formed in 64 bits: in a large pool it does not fit 32
    (flashinfer-ai/flashinfer#3136).
    """
    return blocks.to(torch.int64) * page_stride


@seam("layout.packed-pages", "layout.manager-block-stride")
def pages_as_stored(kv_cache: Tensor) -> Tensor:
    """kv_cache [N, P, D] float32, bfloat16 or float8_e4m3fn, with the stride of its pages, which
    need not follow from their size (vllm-project/vllm#45111).
    """
    return kv_cache


@seam("decode.zero-length-row-nan")
def divide_by_sum(accumulated: Tensor, total: Tensor) -> Tensor:
    """accumulated [..., R] / total [...].

    A total of 0 means a row without keys; the row stays 0.

    Both are float32.
    """
    return accumulated / torch.where(total == 0, 1.0, total)[..., None]


@seam("decode.lse-of-first-tile")
def lse_of_rows(lse: Tensor) -> Tensor:
    """lse [B, S * H] float32, each tile of rows in its own place.

    The output alone does not show another place: only a later merge reads the lse
    (ikawrakow/ik_llama.cpp#1521).
    """
    return lse


@seam("decode.page-of-first-slots")
def table_columns(page: Tensor, page_size: int) -> Tensor:
    """The column [A] of the table for each page [A] int64, of `page_size` slots.

    A tile of 64 slots has several pages where these are smaller (flashinfer-ai/flashinfer#3022).
    """
    return page


@dataclass(slots=True)
class _Call:
    q: Tensor
    kv_cache: Tensor
    block_table: Tensor
    seq_lens: Tensor
    scale: float
    kv_scale: float | Tensor | None
    window: int | None
    mask_values: bool

    @property
    def page_size(self) -> int:
        """Slots of a page."""
        return self.kv_cache.shape[1]

    @property
    def cache_scale(self) -> float | Tensor:
        # A scale beside a cache of another type scales nothing (vllm-project/vllm#37054).
        is_scaled = self.kv_cache.dtype == torch.float8_e4m3fn
        return self.kv_scale if is_scaled and self.kv_scale is not None else 1.0

    @only_writes
    def key_limits(self) -> Tensor:
        """[B, S] int64: how many keys each query token sees."""
        num_query_tokens = self.q.shape[1]
        steps = torch.arange(1 - num_query_tokens, 1, device=self.q.device)
        return self.seq_lens.to(torch.int64)[:, None] + steps


def _look_up_last_pages(call: _Call) -> None:
    """Look up the last page of each request, of empty ones too; an entry of -1 faults."""
    table = call.block_table
    last = (num_pages(call.seq_lens, call.page_size) - 1).clamp(min=0)
    column = check_indices(last, table.shape[1], "block_table column")
    check_indices(table.gather(1, column[:, None]), call.kv_cache.shape[0], "block_table")


def count_arrivals(counters: Tensor, num_splits: Tensor) -> Tensor:
    """Count the pieces of each request: counters [B] int32, in place, and num_splits [B] int32.

    Returns how many it combines, [B] int64; -1 where no piece is the last.

    Each piece draws a ticket from its request's counter. The piece with ticket num_splits - 1
    combines what has arrived and resets the counter. If the counter began at c > 0, that piece
    comes c pieces too early, or never.
    """
    start = counters.to(torch.int64)
    splits = num_splits.to(torch.int64)
    in_time = (start >= 0) & (start < splits)
    arrived = torch.where(in_time, splits - start, -1)
    counters.copy_(torch.where(in_time, start, (splits - 1).clamp(min=0)))
    # An empty request has no piece, and its row stays unwritten anyway.
    return torch.where(splits > 0, arrived, 0)


def _scratch(q: Tensor, plan: SplitPlan) -> tuple[Tensor, Tensor]:
    """Unwritten memory for the pieces of each request: out [B * room, S * H, R], lse [B * room,
    S * H], float32.

    The room is the plan's, not this plan's number of pieces: a graph captures one size for all.
    """
    num_requests, num_query_tokens, num_heads, head_dim = q.shape
    shape = (num_requests * plan.room, num_query_tokens * num_heads)
    device = plan.work.device
    partial_out = torch.empty((*shape, latent_rank(head_dim)), dtype=torch.float32, device=device)
    return partial_out, torch.empty(shape, dtype=torch.float32, device=device)


def _words_at(workspace: Tensor | None, count: int) -> Tensor:
    """The first `count` words, int32 [count], at the address of `workspace` [B or more], past the
    tensor's end too: a kernel sees no end.
    """
    assert workspace is not None, "the contract gives it to kernels that count"
    words = workspace.untyped_storage().nbytes() // workspace.element_size() - int(
        workspace.storage_offset()
    )
    check_indices(torch.tensor([count - 1]), words, "workspace word")
    return workspace.as_strided((count,), (1,))


@only_writes
def _attend(call: _Call, plan: SplitPlan, partial_out: Tensor, partial_lse: Tensor) -> None:
    """Write the partial attention of each planned piece, [B * room, S * H, R], and its lse [B *
    room, S * H].
    """
    num_requests, num_query_tokens, num_heads, head_dim = call.q.shape
    work = plan.work
    unit = pages_per_chunk(call.kv_cache.element_size()) if plan.in_chunks else 1
    rows = num_query_tokens * num_heads
    rank = latent_rank(head_dim)
    items = (work[:, 1] < work[:, 2]).nonzero().flatten()
    request = check_indices(work[items, 0], num_requests, "metadata.work request")
    # Item i is piece i % MAX_SPLITS of its request, see `SplitPlan`.
    scratch = request * plan.room + check_indices(
        items % MAX_SPLITS, plan.room, "metadata: piece in the scratch"
    )
    begin = work[items, 1].to(torch.int64) * unit
    end = torch.minimum(
        work[items, 2].to(torch.int64) * unit, num_pages(call.seq_lens, call.page_size)[request]
    )
    queries = call.q.float().reshape(num_requests, rows, head_dim)[request] * (
        call.scale * call.cache_scale
    )
    limits = call.key_limits().repeat_interleave(num_heads, dim=1)[request]
    seq_lens = call.seq_lens[request]
    state = _State.empty(items.shape[0], rows, rank, work.device)
    counts = (end - begin).tolist()
    slots = torch.arange(call.page_size, device=work.device)
    for offset in range(max(counts, default=0)):
        # A slice is a view; an index would copy the state of every piece for each page.
        active = slice(None) if offset < min(counts) else (begin + offset < end).nonzero().flatten()
        page = begin[active] + offset
        tile = _load_tile(call, request[active], page)
        positions = page[:, None] * call.page_size + slots
        scores = torch.bmm(queries[active], tile.transpose(1, 2))
        seen = limits[active][..., None]
        scores.masked_fill_(positions[:, None, :] >= seen, _MINUS_INF)
        used = positions < seq_lens[active][:, None]
        if call.window is not None:
            scores.masked_fill_(positions[:, None, :] < seen - call.window, _MINUS_INF)
            used &= positions >= limits[active].amin(dim=1, keepdim=True) - call.window
        values = tile[..., :rank]
        state.add(active, scores, mask_unused_values(values, used) if call.mask_values else values)
    partial_out[scratch] = (
        state.accumulated / torch.where(state.total == 0, 1.0, state.total)[..., None]
    )
    # A piece without keys has maximum -inf and total 0. Its lse is 0 + log 0, the -inf that the
    # combine expects.
    partial_lse[scratch] = _finite_or_zero(state.maximum) + state.total.log()


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

    def add(self, active: Tensor | slice, scores: Tensor, values: Tensor) -> None:
        """Add one page of the pieces `active`: scores [A', rows, P], values [A', P, R].

        All are float32; `active` is int64 [A'] or a slice. A NaN in a score makes the maximum of
        its row NaN, as on a GPU without fmax.
        """
        before = self.maximum[active]
        maximum = torch.maximum(before, scores.amax(dim=-1))
        # The maximum of a row without keys so far is -inf, and -inf - -inf is NaN.
        shift = _finite_or_zero(maximum)
        weights = (scores - shift[..., None]).exp_()
        decay = (before - shift).exp()
        self.maximum[active] = maximum
        self.total[active] = self.total[active] * decay + weights.sum(dim=-1)
        self.accumulated[active] = torch.baddbmm(
            self.accumulated[active] * decay[..., None], weights, values
        )


def _load_tile(call: _Call, request: Tensor, page: Tensor) -> Tensor:
    """The page `page` of each request as float32 [A, P, D], unscaled, with its unused slots."""
    columns = table_columns(page, call.page_size)
    column = check_indices(columns, call.block_table.shape[1], "block_table column")
    # The offset is formed and taken apart again, so that a fault in its arithmetic reaches a wrong
    # page, or none.
    stride = call.kv_cache.stride(0)
    offsets = page_offsets(call.block_table[request, column], stride)
    block = check_indices(
        offsets.div(stride, rounding_mode="floor"), call.kv_cache.shape[0], "block_table"
    )
    pages = pages_as_stored(call.kv_cache)
    if pages.dtype != torch.float8_e4m3fn:
        return pages.index_select(0, block).float()
    # Older torch cannot index fp8. A table of the 256 values is three times as fast as a
    # conversion.
    raw = pages.view(torch.uint8).index_select(0, block)
    table = (
        torch.arange(256, dtype=torch.uint8, device=raw.device).view(torch.float8_e4m3fn).float()
    )
    return table.index_select(0, raw.flatten().int()).view(raw.shape)


@only_writes
def _combine(
    partial_out: Tensor, partial_lse: Tensor, num_splits: Tensor, room: int
) -> tuple[Tensor, Tensor]:
    """Merge the pieces of each request: out [B, S * H, R] and lse [B, S * H]; rows without keys are
    0 and -inf.
    """
    num_requests = num_splits.shape[0]
    # In a real combine a negative count means no turn of the loop, and a count too large reads past
    # the scratch.
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


@only_writes
def _write(out: Tensor, rows: Tensor, written: Tensor) -> None:
    """Store `rows` [B, S, ...] in the rows of `out` that are `written` [B, S]."""
    out[written] = rows[written].to(out.dtype)


def _finite_or_zero(maximum: Tensor) -> Tensor:
    return maximum.masked_fill(maximum == _MINUS_INF, 0.0)
