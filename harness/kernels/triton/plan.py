"""`mla_decode_plan` in Triton: one program cuts every request's pages into splits of about equal work."""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness.core.ops import PAGE_SIZE
from harness.kernels.torch.plan import SplitPlan
from harness.memory.triton_interpreter import prepare

INTERPRETED = prepare()
PROGRAMS_PER_SM = 2
"""Split programs that a multiprocessor holds at once, given their shared memory and registers."""
CANDIDATES = 9
"""Split sizes that the plan compares: from the even share to twice as much, in steps of an eighth."""


@triton.jit(do_not_specialize=["num_requests", "max_splits", "target"])
def _plan(
    seq_lens, work, num_splits, num_requests, max_splits, target,
    PAGE: tl.constexpr, BLOCK: tl.constexpr, BLOCK_SPLITS: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    request = tl.arange(0, BLOCK)
    live = request < num_requests
    pages = (tl.maximum(tl.load(seq_lens + request, mask=live, other=0), 0) + PAGE - 1) // PAGE
    share = tl.maximum((tl.sum(pages, axis=0) + target - 1) // target, 1)
    # Splits a little longer than the even share often save a whole wave of programs: 65 pages as two splits of 33, not
    # three of 22. The cost is waves times the longest split, and about two pages of start and end a split.
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
    tl.store(row, request[:, None] + split * 0, mask=mask)
    tl.store(row + 1, tl.where(used, begin, 0), mask=mask)
    tl.store(row + 2, tl.where(used, end, 0), mask=mask)
    tl.store(num_splits + request, tl.sum(used.to(tl.int32), axis=1), mask=live)


def mla_decode_plan(seq_lens: Tensor, *, num_heads: int) -> SplitPlan:
    """Plan `mla_decode` for seq_lens [B] int32 without a host read. Shapes depend on B and the device only."""
    num_requests = seq_lens.shape[0]
    target = max(1, programs_in_a_wave(seq_lens.device) // triton.cdiv(num_heads, 64))
    max_splits = max_splits_for(num_requests, target)
    work = torch.empty(num_requests * max_splits, 3, dtype=torch.int32, device=seq_lens.device)
    num_splits = torch.empty(num_requests, dtype=torch.int32, device=seq_lens.device)
    if num_requests:
        sizes = (num_requests, max_splits, target, PAGE_SIZE)
        blocks = (triton.next_power_of_2(num_requests), triton.next_power_of_2(max_splits))
        _plan[(1,)](seq_lens, work, num_splits, *sizes, *blocks, CANDIDATES, num_warps=4)
    return SplitPlan(work, num_splits)


def max_splits_for(num_requests: int, target: int) -> int:
    """The most splits of a request: four times its share, to spread out one long request beside short ones."""
    return min(max(4 * target // max(num_requests, 1), 4), 64)


def programs_in_a_wave(device: torch.device) -> int:
    """Split programs that run at once on `device`. Few for the interpreter, where each costs time."""
    if device.type != "cuda":
        return 4
    multiprocessors: int = torch.cuda.get_device_properties(device).multi_processor_count
    return PROGRAMS_PER_SM * multiprocessors
