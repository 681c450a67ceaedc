"""A call of `map_indices`, beside its reference."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.ops.map_indices import inputs, reference
from harness.ops.map_indices.params import MapIndicesParams
from harness.ops.parts.buffers import give_buffer, with_trap
from harness.ops.parts.call import KernelCall, Setting, prepared
from harness.ops.parts.judged import Rows


def prepare(params: MapIndicesParams, setting: Setting) -> KernelCall:
    """A call that maps positions to slots. Rows of later tokens must not change."""
    raw = inputs.draw(params, setting.seed)
    given, kept = prepared(raw, with_trap(setting, raw.trap_block))
    rows = len(kept.positions)

    def observe(outputs: tuple[Tensor, ...]) -> list[Rows]:
        """slots [T, K] int32 beside the reference."""
        want = reference.expected(kept)
        return [
            Rows(
                "slots",
                outputs[0],
                torch.ones(rows, dtype=torch.bool),
                want,
                "",
                "token",
                "sparse.topk",
            )
        ]

    call = KernelCall.of(
        "map_indices", given, kept, {"T": rows, "K": params.topk}, (torch.int32,), observe
    )
    give_buffer(call, setting, given.buffer, kept.buffer, rows)
    return call
