"""Known bugs of kernels of `merge_attn_states`, which are injected on purpose."""

from __future__ import annotations

import torch
from torch import Tensor


def minus_inf_only(lse: Tensor) -> Tensor:
    """Take -inf alone in lse [H, T] for an empty side, where the backend writes +inf
    (vllm-project/vllm#15492).

    lse is float32, the result [H, T] bool.
    """
    return lse == float("-inf")


def suffix_by_prefix_strides(prefix_out: Tensor, suffix_out: Tensor) -> Tensor:
    """Read suffix_out [T, H, V] at the offsets of prefix_out [T, H, V]; bfloat16 or float32."""
    return torch.as_strided(suffix_out, suffix_out.shape, prefix_out.stride())


def merge_all_tokens(
    prefix_out: Tensor,
    prefix_lse: Tensor,
    suffix_out: Tensor,
    suffix_lse: Tensor,
    *,
    num_tokens_with_context: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The merge before vllm-project/vllm#36540: without the count, it weighs unwritten prefix rows
    too.

    An empty side has weight 0, but 0 times an unwritten NaN is NaN; an unwritten lse makes a weight
    of any size. Its shapes are in
    :func:`harness.ops.merge_attn_states.kernels.dense.merge_attn_states`.

    prefix_out [T, H, V] and suffix_out [T, H, V] bfloat16 or float32, prefix_lse [H, T] and
    suffix_lse [H, T] float32 -> out, lse.
    """
    minus_inf = float("-inf")
    prefix_lse = prefix_lse.masked_fill(prefix_lse == float("inf"), minus_inf)
    suffix_lse = suffix_lse.masked_fill(suffix_lse == float("inf"), minus_inf)
    maximum = torch.maximum(prefix_lse, suffix_lse)
    prefix_sum = (prefix_lse - maximum).exp()
    suffix_sum = (suffix_lse - maximum).exp()
    total = prefix_sum + suffix_sum
    prefix_weight, suffix_weight = (
        (side / total).transpose(0, 1)[..., None] for side in (prefix_sum, suffix_sum)
    )
    out = torch.empty_like(prefix_out)
    lse = torch.empty_like(prefix_lse)
    out.copy_(prefix_out.float() * prefix_weight + suffix_out.float() * suffix_weight)
    lse.copy_(maximum + total.log())
    return out, lse
