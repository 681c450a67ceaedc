"""A call of `context_attention`, beside its reference."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.ops.context_attention import inputs, reference
from harness.ops.context_attention.params import ContextAttentionParams
from harness.ops.parts.attention import WantedAttention
from harness.ops.parts.call import KernelCall, Setting, attention_rows, out_and_lse, prepared
from harness.ops.parts.judged import Rows


def prepare(params: ContextAttentionParams, setting: Setting) -> KernelCall:
    given, kept = prepared(inputs.draw(params, setting.seed), setting)

    def observe(outputs: tuple[Tensor, ...]) -> list[Rows]:
        """out [T, H, V] and lse [H, T] float32, beside the reference, a row for each token."""
        want = reference.expected(
            kept.q, kept.k, kept.v, kept.query_start_loc, kept.chunk_start_loc, scale=kept.scale
        )
        rows = WantedAttention(want.out, want.lse.T, want.defined)
        out, lse = out_and_lse(outputs)
        both = (out, None if lse is None else lse.T)
        return attention_rows(setting.spec, "", "token", "context.output", both, rows)

    dims = {"T": given.q.shape[0], "H": given.q.shape[1], "V": params.v_head_dim}
    return KernelCall.of(
        "context_attention", given, kept, dims, (given.q.dtype, torch.float32), observe
    )
