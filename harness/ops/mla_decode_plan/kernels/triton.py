"""The plan of split-KV decode, in Triton."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from harness.core.ops import PAGE_SIZE
from harness.kernels.checks import check_dense
from harness.ops.mla_decode_plan.kernels.triton_code import plan_splits
from harness.ops.parts.split_plan import SplitPlan

CANDIDATES = 9
"""Split sizes that the plan compares: from the even share to twice as much, in steps of an eighth.
"""
PROGRAMS_PER_SM = 2
"""Split programs that a multiprocessor holds at once, given their shared memory and registers."""


def mla_decode_plan(seq_lens: Tensor, *, num_heads: int) -> SplitPlan:
    """Plan `mla_decode` for seq_lens [B] int32 without a host read.

    Shapes depend on B and the device only.
    """
    check_dense("seq_lens", seq_lens, is_index=True)
    num_requests = seq_lens.shape[0]
    # A program has up to 64 query rows, so more heads take several programs for each split.
    target = max(1, programs_in_a_wave(seq_lens.device) // triton.cdiv(num_heads, 64))
    max_splits = max_splits_for(num_requests, target)
    work = torch.empty(num_requests * max_splits, 3, dtype=torch.int32, device=seq_lens.device)
    num_splits = torch.empty(num_requests, dtype=torch.int32, device=seq_lens.device)
    if num_requests:
        sizes = (num_requests, max_splits, target, PAGE_SIZE)
        blocks = (triton.next_power_of_2(num_requests), triton.next_power_of_2(max_splits))
        plan_splits[(1,)](seq_lens, work, num_splits, *sizes, *blocks, CANDIDATES, num_warps=4)
    return SplitPlan(work, num_splits)


def max_splits_for(num_requests: int, target: int) -> int:
    """The most splits of a request: four times its share, to spread out one long request beside
    short ones.
    """
    return min(max(4 * target // max(num_requests, 1), 4), 64)


def programs_in_a_wave(device: torch.device) -> int:
    """Split programs that run at once on `device`.

    Few for the interpreter, where each costs time.
    """
    if device.type != "cuda":
        return 4
    multiprocessors: int = torch.cuda.get_device_properties(device).multi_processor_count
    return PROGRAMS_PER_SM * multiprocessors
