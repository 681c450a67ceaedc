"""`atom/model_ops/attentions/triton_merge_attn_states.py` of ROCm/ATOM at ffdf3bb."""

import types

import sources
import torch

from harness import kernel

sources.stub("aiter", dtypes=types.SimpleNamespace(fp8=torch.float8_e4m3fn))
states = sources.load("atom.model_ops.attentions.triton_merge_attn_states", "ATOM")


@kernel(op="merge_attn_states", name="atom")
def merge(prefix_out, prefix_lse, suffix_out, suffix_lse, *, num_tokens_with_context=None):
    out = torch.empty(suffix_out.shape, dtype=suffix_out.dtype, device=suffix_out.device)
    lse = torch.empty_like(suffix_lse)
    states.merge_attn_states(
        out, prefix_out, prefix_lse, suffix_out, suffix_lse, lse, num_tokens_with_context
    )
    return out, lse
