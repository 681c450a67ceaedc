"""Outputs of one graph that are read after another graph of the same pool ran."""

from __future__ import annotations

import torch

from harness.engine.paged_model import Forwarded


def borrow_logits(forwarded: Forwarded, num_live: int) -> torch.Tensor:
    """Hand out the graph's own memory, which the drafter's graph may reuse (vllm-project/vllm#53488)."""
    return forwarded.logits[:num_live]
