"""vllm-project/vllm#36540: merging also the tokens that have no context, whose prefix rows nobody wrote."""

from __future__ import annotations

import torch
from torch import Tensor


def merge_all_tokens(
    prefix_out: Tensor,
    prefix_lse: Tensor,
    suffix_out: Tensor,
    suffix_lse: Tensor,
    *,
    num_tokens_with_context: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The merge before the fix: it knows no count, and weighs every prefix row, an unwritten one too.

    An empty side has weight 0, but 0 times an unwritten NaN is NaN; an unwritten lse makes a weight of any size.
    Shapes as in :func:`harness.kernels.torch_merge.merge_attn_states`.
    """
    minus_inf = float("-inf")
    prefix_lse = prefix_lse.masked_fill(prefix_lse == float("inf"), minus_inf)
    suffix_lse = suffix_lse.masked_fill(suffix_lse == float("inf"), minus_inf)
    maximum = torch.maximum(prefix_lse, suffix_lse)
    prefix_sum, suffix_sum = (prefix_lse - maximum).exp(), (suffix_lse - maximum).exp()
    total = prefix_sum + suffix_sum
    prefix_weight, suffix_weight = ((side / total).transpose(0, 1)[..., None] for side in (prefix_sum, suffix_sum))
    out = torch.empty_like(prefix_out)
    lse = torch.empty_like(prefix_lse)
    out.copy_(prefix_out.float() * prefix_weight + suffix_out.float() * suffix_weight)
    lse.copy_(maximum + total.log())
    return out, lse
