"""Faults of memory that a captured graph keeps using: freed, shared with the pool, too small, or not updated."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.core.engine_params import EngineParams
from harness.engine.batch import DecodeInputs
from harness.engine.kernels import Workspace
from harness.engine.paged_model import Forwarded
from harness.memory.graph.launch import ACTIVE


def counters_that_grow(workspace: Workspace, num_requests: int) -> Tensor:
    """Begin with nothing and make a larger tensor when a batch needs one; graphs keep the old one
    (PR 45487)."""
    grown: Tensor | None = vars(workspace).get("grown")
    if grown is None or len(grown) < num_requests:
        grown = torch.zeros(num_requests, dtype=torch.int32)
        vars(workspace)["grown"] = grown
    return grown[:num_requests]


def counters_made_in_a_capture(workspace: Workspace, num_requests: int) -> Tensor:
    """Keep the counters that the first capture makes, for later graphs and eager steps (ROCm/aiter#5393)."""
    kept: Tensor | None = vars(workspace).get("kept")
    if kept is None:
        kept = torch.zeros(workspace.num_requests, dtype=torch.int32)
        if ACTIVE.get() is not None:
            vars(workspace)["kept"] = kept
    return kept[:num_requests]


def request_limit(params: EngineParams) -> int:
    """Count the requests that run at once; the largest graph has more (PR 41016)."""
    return params.max_num_seqs


def replace_table(static: DecodeInputs, live: DecodeInputs) -> None:
    """Build the block table anew for each replay instead of copying it in place (sgl-project/sglang#26019)."""
    table = torch.zeros_like(static.block_table)
    table[: live.block_table.shape[0]] = live.block_table
    # The captured table stays allocated, as in the engine that had the bug; it is only not updated any more.
    table.captured = static.block_table  # type: ignore[attr-defined]
    static.block_table = table


def borrow_logits(forwarded: Forwarded, num_live: int) -> Tensor:
    """Hand out the graph's own memory, which the drafter's graph may reuse (PR 53488)."""
    return forwarded.logits[:num_live]
