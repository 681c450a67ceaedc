"""The Triton code of the plan."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_requests", "max_splits", "target"])
def plan_splits(
    seq_lens,
    work,
    num_splits,
    num_requests,
    max_splits,
    target,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    CANDIDATES: tl.constexpr,
):
    request = tl.arange(0, BLOCK)
    live = request < num_requests
    pages = (tl.maximum(tl.load(seq_lens + request, mask=live, other=0), 0) + PAGE - 1) // PAGE
    share = tl.maximum((tl.sum(pages, axis=0) + target - 1) // target, 1)
    # Splits a little longer than the even share often save a whole wave of programs: 65 pages as
    # two splits of 33, not three of 22. The cost is waves times the longest split, and about two
    # pages of start and end a split.
    best = share
    best_cost = share * 0 + 0x7FFFFFFF
    for candidate in range(CANDIDATES):
        size = share + (share * candidate + 7) // 8
        count = tl.sum((pages + size - 1) // size, axis=0)
        cost = ((count + target - 1) // target) * (size + 2)
        best = tl.where(cost < best_cost, size, best)
        best_cost = tl.minimum(cost, best_cost)
    size = tl.maximum(best, (pages + max_splits - 1) // max_splits)
    count = (pages + size - 1) // size
    # Even splits: 33 pages in two are 17 and 16, not 32 and 1.
    even = (pages + count - 1) // tl.maximum(count, 1)
    split = tl.arange(0, BLOCK_SPLITS)[None, :]
    begin = tl.minimum(split * even[:, None], pages[:, None])
    end = tl.minimum(begin + even[:, None], pages[:, None])
    used = (begin < end) & (split < max_splits)
    row = work + (request.to(tl.int64)[:, None] * max_splits + split) * 3
    mask = live[:, None] & (split < max_splits)
    # Items without work as well: a program of the grid reads each (flashinfer-ai/flashinfer#4002).
    tl.store(row, request[:, None] + split * 0, mask=mask)
    tl.store(row + 1, tl.where(used, begin, 0), mask=mask)
    tl.store(row + 2, tl.where(used, end, 0), mask=mask)
    tl.store(num_splits + request, tl.sum(used.to(tl.int32), axis=1), mask=live)
