"""`mla_decode` and its plan in Triton: the launches of the device kernels, without a device value
read on the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from packaging.version import Version
from torch import Tensor

from harness.core.ops import PAGE_SIZE, latent_rank
from harness.kernels.checks import check_dense, check_range, check_shapes
from harness.memory.bounds import check_indices
from harness.ops.mla_decode.kernels.triton_code import INTERPRETED, combine_splits, decode_split
from harness.ops.mla_decode_plan.kernels.triton import mla_decode_plan
from harness.ops.parts.split_plan import SplitPlan, num_pages

LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class Tiling:
    """Query rows and slots of a tile of the split program, its warps, and its pipeline stages.

    Half of the stages look up the page number, so 5 stages keep two tiles in flight.
    """

    rows: int
    slots: int
    warps: int
    stages: int


def tiling_of(num_rows: int, compute: torch.dtype) -> Tiling:
    """Tiling for S * H query rows: measured on an H100 for 16 rows, chosen not to spill registers
    for more.
    """
    if compute == torch.float32:
        return Tiling(rows=16, slots=16, warps=8, stages=3)
    if num_rows <= 16:
        # On an H100, 73 us against 93 with Triton 3.8. Triton 3.6 spills with as many slots.
        wide = compute == torch.float16 and Version(triton.__version__) >= Version("3.8")
        return Tiling(rows=16, slots=64 if wide else 32, warps=4, stages=5)
    if num_rows <= 32 or compute == torch.float16:
        return Tiling(rows=32, slots=32, warps=4, stages=5)
    return Tiling(rows=64, slots=32, warps=8, stages=5)


def constants_of(
    rank: int,
    rope_dim: int,
    compute: torch.dtype,
    tiling: Tiling,
    *,
    narrow_cache: bool,
    mask_values: bool = True,
) -> dict[str, Any]:
    """What the split program is compiled for: the columns of the latent and of the rope, and of
    tiles with half of each, the tiling, the type of the products, and how the cache is read.
    """
    return {
        "R": rank,
        "E": rope_dim,
        # A dot needs at least 16 columns, and a range of Triton is a power of two.
        "BLOCK_R": max(16, rank // 2),
        "BLOCK_E": max(16, triton.next_power_of_2(rope_dim) // 2),
        "BLOCK_ROWS": tiling.rows,
        "BLOCK_SLOTS": tiling.slots,
        "PAGE": PAGE_SIZE,
        "COMPUTE": _TRITON_TYPES[compute],
        "NARROW_CACHE": narrow_cache,
        "FIT_QUERY": compute == torch.float16,
        "STAGES": tiling.stages,
        "MASK_VALUES": mask_values,
    }


def mla_decode(
    q: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    kv_scale: float | Tensor | None = None,
    metadata: SplitPlan | None = None,
    mask_values: bool = True,
    write_empty_rows: bool = True,
    prefetch_page: bool = False,
) -> tuple[Tensor, Tensor]:
    """Paged MLA decode. Rows without keys get out 0 and lse -inf.

    q: [B, S, H, D], kv_cache: [N, 64, D] float32, bfloat16 or float8_e4m3fn, block_table: [B, M]
    int32, seq_lens: [B] int32 -> out [B, S, H, R] in q's dtype, lse [B, H, S] float32 (natural
    logarithm). An fp8 cache is multiplied by kv_scale, [1] float32 on the device or a float; its
    strides must be even. Query token s sees the keys before seq_lens[b] - S + s + 1. The plan is
    read on the device and clipped by seq_lens; one for shorter lengths leaves out later pages.
    Scores of a float32 query are computed in float32, of a bfloat16 query in bfloat16, or in
    float16 over an fp8 cache. Raises ValueError for shapes that do not go together.
    """
    tables = ("block_table", block_table, "BM"), ("seq_lens", seq_lens, "B")
    check_shapes(("q", q, "BSHD"), ("kv_cache", kv_cache, "NPD"), *tables, P=PAGE_SIZE)
    check_dense("kv_cache", kv_cache)
    check_dense("block_table", block_table, is_index=True)
    check_dense("seq_lens", seq_lens, is_index=True)
    if prefetch_page:
        last_page = check_indices(
            (num_pages(seq_lens) - 1).clamp(min=0), block_table.shape[1], "block_table column"
        )
        check_indices(block_table.gather(1, last_page[:, None]), kv_cache.shape[0], "block_table")
    num_requests, query_len, num_heads, head_dim = q.shape
    rank = latent_rank(head_dim)
    num_rows = query_len * num_heads
    out = torch.empty((num_requests, query_len, num_heads, rank), dtype=q.dtype, device=q.device)
    lse = torch.empty((num_requests, num_heads, query_len), dtype=torch.float32, device=q.device)
    # A grid of 0 programs is an error of the launch.
    if num_requests == 0:
        return out, lse
    plan = metadata or mla_decode_plan(seq_lens, num_heads=num_heads)
    check_range("requests of metadata", len(plan.num_splits), num_requests, num_requests)
    if INTERPRETED:
        _check_addresses(kv_cache, block_table, seq_lens, plan.work)
    num_items = plan.work.shape[0]
    partial_out = torch.empty((num_items, num_rows, rank), dtype=torch.float32, device=q.device)
    partial_lse = torch.empty((num_items, num_rows), dtype=torch.float32, device=q.device)
    call = _Call(q, kv_cache, block_table, seq_lens, scale, kv_scale)
    _launch_splits(call, plan.work, partial_out, partial_lse, mask_values=mask_values)
    # The interpreter pays for programs, the GPU for idle multiprocessors.
    rows = 32 if INTERPRETED else 2
    combine_splits[(num_requests, triton.cdiv(num_rows, rows))](
        partial_out,
        partial_lse,
        seq_lens,
        plan.work,
        out,
        lse,
        num_items // num_requests,
        query_len,
        num_heads,
        R=rank,
        BLOCK_ROWS=rows,
        BLOCK_SPLITS=triton.next_power_of_2(num_items // num_requests),
        PAGE=PAGE_SIZE,
        WRITE_EMPTY=write_empty_rows,
        num_warps=4,
    )
    return out, lse


@dataclass(frozen=True, slots=True)
class _Call:
    """The tensors and scales of a call, as `mla_decode` documents them."""

    q: Tensor
    kv_cache: Tensor
    block_table: Tensor
    seq_lens: Tensor
    scale: float
    kv_scale: float | Tensor | None

    @property
    def compute(self) -> torch.dtype:
        """The type of the products."""
        if torch.float32 in (self.q.dtype, self.kv_cache.dtype):
            return torch.float32
        # float8 is exact in float16, and its products have 3 more bits there than in bfloat16.
        return torch.float16 if self.kv_cache.element_size() == 1 else torch.bfloat16


def _launch_splits(
    call: _Call, work: Tensor, partial_out: Tensor, partial_lse: Tensor, *, mask_values: bool
) -> None:
    """Launch a program for each item of `work` [W, 3] int32 and block of query rows.

    They write partial_out [W, S * H, R] and partial_lse [W, S * H] float32.
    """
    num_requests, query_len, num_heads, head_dim = call.q.shape
    rank = latent_rank(head_dim)
    rope_dim = head_dim - rank
    num_rows = query_len * num_heads
    num_items = len(work)
    compute = call.compute
    tiling = tiling_of(num_rows, compute)
    # A scale beside a cache of another type scales nothing.
    is_scaled = call.kv_cache.dtype == torch.float8_e4m3fn
    kv_scale = call.kv_scale if is_scaled else None
    # A scale on the device is read there: a graph may be captured, and the host must not wait.
    constant = float(kv_scale) if isinstance(kv_scale, int | float) else 1.0
    # float8 is seen as pairs of columns, see `_cache_columns`; the strides below count pairs too.
    narrow = call.kv_cache.element_size() == 1
    cache = call.kv_cache.view(torch.int16) if narrow else call.kv_cache
    decode_split[(num_items, triton.cdiv(num_rows, tiling.rows))](
        # The kernel finds a query row by its number and width, and knows no strides of the query.
        call.q.contiguous(),
        cache,
        call.block_table,
        call.seq_lens,
        kv_scale if isinstance(kv_scale, Tensor) else None,
        work,
        partial_out,
        partial_lse,
        # The exponents of the kernel have base 2, which a GPU computes in one instruction.
        call.scale * constant * LOG2_E,
        constant,
        num_requests,
        num_items // num_requests,
        query_len,
        num_heads,
        cache.stride(0),
        cache.stride(1),
        call.block_table.stride(0),
        **constants_of(
            rank, rope_dim, compute, tiling, narrow_cache=narrow, mask_values=mask_values
        ),
        num_warps=tiling.warps,
    )


mla_decode_unwritten = partial(mla_decode, write_empty_rows=False)
"""Kernel `triton-unwritten`: rows without keys are left unwritten, as FlashMLA does."""

mla_decode_multiply = partial(mla_decode, mask_values=False, write_empty_rows=False)
"""Kernel `triton-multiply`: reads whole pages, and only a weight of 0 removes unused values."""

mla_decode_prefetch = partial(mla_decode, prefetch_page=True, write_empty_rows=False)
"""Kernel `triton-prefetch`: looks up the last page of empty requests too
(vllm-project/vllm#35431).
"""

_TRITON_TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def _check_addresses(kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, work: Tensor) -> None:
    """Raise IllegalAddress where a GPU would fault.

    The interpreter would read the host's memory unseen.
    """
    items = work[work[:, 1] < work[:, 2]].to(torch.int64)
    request = check_indices(items[:, 0], seq_lens.shape[0], "metadata.work request")
    pages = (seq_lens.to(torch.int64) + PAGE_SIZE - 1) // PAGE_SIZE
    column = torch.arange(block_table.shape[1], device=work.device)
    end = torch.minimum(items[:, 2], pages[request])
    check_indices((end - 1).clamp(min=0), block_table.shape[1], "block_table column")
    needed = (column >= items[:, 1:2]) & (column < end[:, None])
    check_indices(block_table[request][needed], kv_cache.shape[0], "block_table")
