"""Merge of two partial attentions by their log-sum-exp, with empty sides selected away."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_poison.allocations import only_writes

from harness.core.seams import seam
from harness.kernels.checks import check_range, check_shapes


@seam("merge.ignore-context-count")
def merge_attn_states(
    prefix_out: Tensor,
    prefix_lse: Tensor,
    suffix_out: Tensor,
    suffix_lse: Tensor,
    *,
    num_tokens_with_context: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Merge attention over a prefix of the keys with attention over the rest.

    prefix_out, suffix_out: [T, H, V], prefix_lse, suffix_lse: [H, T] float32 -> out [T, H, V] in
    the prefix's dtype, lse [H, T] float32. Tokens at or past `num_tokens_with_context` (None: T)
    are copied from the suffix; their prefix rows are not read. An lse of -inf or +inf marks a side
    without keys, and its output is not used. With both sides empty, out is 0 and lse -inf. Raises
    ValueError for a count outside of 0..T.
    """
    sides = (
        ("suffix_out", suffix_out, "THV"),
        ("prefix_lse", prefix_lse, "HT"),
        ("suffix_lse", suffix_lse, "HT"),
    )
    check_shapes(("prefix_out", prefix_out, "THV"), *sides)
    num_tokens = prefix_out.shape[0]
    merged = num_tokens if num_tokens_with_context is None else num_tokens_with_context
    check_range("num_tokens_with_context", merged, 0, num_tokens)
    suffix_out = suffix_as_stored(prefix_out, suffix_out)
    out = torch.empty(prefix_out.shape, dtype=prefix_out.dtype, device=prefix_out.device)
    lse = torch.empty(prefix_lse.shape, dtype=torch.float32, device=prefix_lse.device)
    # Only these rows: the prefix of the others was never written (vllm-project/vllm#36540).
    prefix = prefix_out[:merged], prefix_lse[:, :merged]
    suffix = suffix_out[:merged], suffix_lse[:, :merged]
    _merge(*prefix, *suffix, out[:merged], lse[:, :merged])
    out[merged:] = suffix_out[merged:]
    lse[:, merged:] = suffix_lse[:, merged:]
    return out, lse


@only_writes
def _merge(
    prefix_out: Tensor,
    prefix_lse: Tensor,
    suffix_out: Tensor,
    suffix_lse: Tensor,
    out: Tensor,
    lse: Tensor,
) -> None:
    """Write out [T, H, V] and lse [H, T] of tokens whose prefix and suffix are both read."""
    prefix_empty = has_no_keys(prefix_lse)
    suffix_empty = has_no_keys(suffix_lse)
    prefix_lse = prefix_lse.masked_fill(prefix_empty, float("-inf"))
    suffix_lse = suffix_lse.masked_fill(suffix_empty, float("-inf"))
    shift = common_shift(torch.maximum(prefix_lse, suffix_lse))
    prefix_sum = (prefix_lse - shift).exp()
    suffix_sum = (suffix_lse - shift).exp()
    total = prefix_sum + suffix_sum
    # 0 / 0 where both sides are empty. The fill below replaces it.
    blend = prefix_out.float() * _by_row(prefix_sum / total) + suffix_out.float() * _by_row(
        suffix_sum / total
    )
    blend = select_sides(
        blend, prefix_out, suffix_out, _by_row(prefix_empty), _by_row(suffix_empty)
    )
    blend = blend.masked_fill(_by_row(prefix_empty & suffix_empty), 0.0)
    out.copy_(blend)
    # Of two empty sides the shift is 0 and the total too, so the lse is -inf by itself.
    lse.copy_(shift + total.log())


@seam("merge.prefix-strides-for-suffix")
def suffix_as_stored(prefix_out: Tensor, suffix_out: Tensor) -> Tensor:
    """suffix_out [T, H, V], read with its own strides, not those of prefix_out [T, H, V]; bfloat16
    or float32.

    From the second merge on, the prefix is an earlier output without gaps. The suffix may still be
    the first V columns of a wider tensor.
    """
    return suffix_out


@seam("merge.assume-minus-inf")
def has_no_keys(lse: Tensor) -> Tensor:
    """The empty sides [H, T] bool of lse [H, T] float32.

    FlashAttention-3 marks them with -inf, FlashAttention-2 with +inf (vllm-project/vllm#15492).
    """
    return lse.isinf()


@seam("merge.both-sides-empty")
def common_shift(maximum: Tensor) -> Tensor:
    """The shift of both exponents: `maximum` [H, T] float32, the larger lse, or 0 where it is -inf.

    With two empty sides, -inf - -inf would be NaN and stay in every later merge
    (vllm-project/vllm#27491).
    """
    return maximum.masked_fill(maximum == float("-inf"), 0.0)


@seam("merge.zero-weight-times-stale")
def select_sides(
    blend: Tensor,
    prefix_out: Tensor,
    suffix_out: Tensor,
    prefix_empty: Tensor,
    suffix_empty: Tensor,
) -> Tensor:
    """`blend` [T, H, V] float32, replaced by the other side where one side is empty.

    prefix_out [T, H, V] and suffix_out [T, H, V] are bfloat16 or float32, prefix_empty [T, H, 1]
    and suffix_empty [T, H, 1] bool.

    The weight of an empty side is 0, but its output may be unwritten, and 0 times NaN is NaN
    (flashinfer-ai/flashinfer#4975).
    """
    blend = torch.where(suffix_empty, prefix_out.float(), blend)
    return torch.where(prefix_empty, suffix_out.float(), blend)


def _by_row(by_head: Tensor) -> Tensor:
    """[H, T] -> [T, H, 1], to broadcast over an output."""
    return by_head.transpose(0, 1)[..., None]
