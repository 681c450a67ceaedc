"""The logits of `index_logits` in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.core.ops import PAGE_SIZE
from harness.ops.index_logits.inputs import PLANAR, LogitInputs
from harness.ops.parts.pages import slots_of
from harness.ops.parts.record_formats import decode, stored


def expected(given: LogitInputs) -> tuple[Tensor, Tensor]:
    """Logits [T, L] float64 from live keys alone, 0 in undefined columns, and which are defined,
    [T, L] bool.
    """
    num_requests, num_tokens = given.q.shape[:2]
    logits = torch.zeros(
        num_requests, num_tokens, given.block_table.shape[1] * PAGE_SIZE, dtype=torch.float64
    )
    defined = torch.zeros(logits.shape, dtype=torch.bool)
    for b, length in enumerate(given.seq_lens.tolist()):
        slots = slots_of(given.block_table[b], length)
        is_packed = given.kv_cache.dtype == torch.uint8
        blocks = slots // PAGE_SIZE
        places = slots % PAGE_SIZE
        keys = (
            decode(stored(given.kv_cache, slots, PLANAR), PLANAR)
            if is_packed
            else given.kv_cache[blocks, places]
        )
        products = given.q[b].float().double() @ keys.double().T
        scores = (products.relu() * given.weights[b].double()[..., None]).sum(1)
        for s in range(num_tokens):
            visible = max(0, length - num_tokens + s + 1)
            logits[b, s, :visible] = scores[s, :visible]
            defined[b, s, :visible] = True
    return logits.flatten(0, 1), defined.flatten(0, 1)
