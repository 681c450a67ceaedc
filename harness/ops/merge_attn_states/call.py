"""A call of `merge_attn_states`, beside its reference."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.ops.merge_attn_states import inputs, reference
from harness.ops.merge_attn_states.params import MergeAttnStatesParams
from harness.ops.parts.call import KernelCall, Setting, out_and_lse, prepared
from harness.ops.parts.judged import Rows


def prepare(params: MergeAttnStatesParams, setting: Setting) -> KernelCall:
    given, kept = prepared(inputs.draw(params, setting.seed), setting)

    def observe(outputs: tuple[Tensor, ...]) -> list[Rows]:
        """out [T, H, V] and lse [H, T] float32, beside the reference, a row for each token."""
        sides = (kept.prefix_out, kept.prefix_lse, kept.suffix_out, kept.suffix_lse)
        want = reference.expected(*sides, num_tokens_with_context=kept.num_tokens_with_context)
        out, lse = out_and_lse(outputs)
        observed = [Rows("out", out, want.defined, want.out, "merge_attn_states.out", "token")]
        if lse is not None:
            observed.append(
                Rows("lse", lse.T, want.defined, want.lse.T, "merge_attn_states.lse", "token")
            )
        return observed

    dims = {"T": params.num_tokens, "H": params.num_heads, "V": params.v_head_dim}
    dtypes = (given.prefix_out.dtype, torch.float32)
    return KernelCall.of("merge_attn_states", given, kept, dims, dtypes, observe)
