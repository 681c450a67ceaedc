"""`merge_attn_states` in Triton: empty sides are selected away by the masks of their loads."""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness.kernels.checks import check_dense, check_range, check_shapes
from harness.memory.triton_interpreter import prepare

INTERPRETED = prepare()


@triton.jit(do_not_specialize=["num_tokens", "num_heads", "num_merged"])
def _merge(
    prefix_out, prefix_lse, suffix_out, suffix_lse, out, lse, num_tokens, num_heads, num_merged,
    prefix_token, prefix_head, suffix_token, suffix_head, prefix_lse_head, prefix_lse_token,
    suffix_lse_head, suffix_lse_token,
    V: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    token = row // num_heads
    head = row % num_heads
    in_row = token < num_tokens
    merged = in_row & (token < num_merged)
    columns = tl.arange(0, BLOCK_V)
    in_value = (columns < V)[None, :]
    inf = float("inf")
    p_at = head * prefix_lse_head + token * prefix_lse_token
    p_lse = tl.load(prefix_lse + p_at, mask=merged, other=-inf).to(tl.float32)
    s_raw = tl.load(
        suffix_lse + head * suffix_lse_head + token * suffix_lse_token, mask=in_row, other=-inf
    )
    s_raw = s_raw.to(tl.float32)
    # Both conventions of "no keys" become -inf (FlashAttention 2 writes +inf).
    p_empty = (p_lse == inf) | (p_lse == -inf)
    s_empty = (s_raw == inf) | (s_raw == -inf)
    p_lse = tl.where(p_empty, -inf, p_lse)
    s_lse = tl.where(s_empty, -inf, s_raw)
    top = tl.maximum(p_lse, s_lse)
    shift = tl.where(top == -inf, 0.0, top)
    p_sum = tl.exp(p_lse - shift)
    s_sum = tl.exp(s_lse - shift)
    total = p_sum + s_sum
    both_empty = p_empty & s_empty
    # Without keys on either side the sum is 0; a divisor of 1 gives out 0 in place of 0 / 0.
    divisor = tl.where(both_empty, 1.0, total)
    copied = in_row & (token >= num_merged)
    # An empty side may be unwritten. It is masked out of the load, because its weight of 0 would
    # keep a NaN.
    read_prefix = merged & (p_lse != -inf)
    read_suffix = copied | (in_row & (s_lse != -inf))
    p_out = prefix_out + (token * prefix_token + head * prefix_head)[:, None] + columns[None, :]
    s_out = suffix_out + (token * suffix_token + head * suffix_head)[:, None] + columns[None, :]
    p = tl.load(p_out, mask=read_prefix[:, None] & in_value, other=0.0).to(tl.float32)
    s = tl.load(s_out, mask=read_suffix[:, None] & in_value, other=0.0).to(tl.float32)
    # A single side has weight 1 and keeps its bits. An empty side adds 0 * 0.
    p_weight = tl.where(copied, 0.0, p_sum / divisor)
    s_weight = tl.where(copied, 1.0, s_sum / divisor)
    blend = p * p_weight[:, None] + s * s_weight[:, None]
    merged_lse = tl.where(both_empty, -inf, shift + tl.log(divisor))
    tl.store(lse + head * num_tokens + token, tl.where(copied, s_raw, merged_lse), mask=in_row)
    out_at = out + (row * V)[:, None] + columns[None, :]
    tl.store(out_at, blend.to(out.dtype.element_ty), mask=in_row[:, None] & in_value)


def merge_attn_states(
    prefix_out: Tensor,
    prefix_lse: Tensor,
    suffix_out: Tensor,
    suffix_lse: Tensor,
    *,
    num_tokens_with_context: int | None = None,
) -> tuple[Tensor, Tensor]:
    """As :func:`harness.ops.merge_attn_states.kernels.dense.merge_attn_states`; empty sides are not
    read.

    prefix_out [T, H, V] and suffix_out [T, H, V] bfloat16 or float32, prefix_lse [H, T] and
    suffix_lse [H, T] float32 (natural logarithm) -> out [T, H, V] in the prefix's type, lse [H, T]
    float32.

    Each input may have its own strides, with a dense value dimension. Raises ValueError for a
    sparse one too.
    """
    num_tokens, num_heads, value_dim = prefix_out.shape
    merged = num_tokens if num_tokens_with_context is None else num_tokens_with_context
    check_range("num_tokens_with_context", merged, 0, num_tokens)
    sides = (
        ("suffix_out", suffix_out, "THV"),
        ("prefix_lse", prefix_lse, "HT"),
        ("suffix_lse", suffix_lse, "HT"),
    )
    check_shapes(("prefix_out", prefix_out, "THV"), *sides)
    check_dense("prefix_out", prefix_out)
    check_dense("suffix_out", suffix_out)
    out = torch.empty(
        (num_tokens, num_heads, value_dim), dtype=prefix_out.dtype, device=prefix_out.device
    )
    lse = torch.empty((num_heads, num_tokens), dtype=torch.float32, device=prefix_out.device)
    # Each program costs the interpreter time. A GPU needs many to be busy.
    rows = 64 if INTERPRETED else 4
    if out.numel():
        tensors = (prefix_out, prefix_lse, suffix_out, suffix_lse, out, lse)
        strides = (
            *prefix_out.stride()[:2],
            *suffix_out.stride()[:2],
            *prefix_lse.stride(),
            *suffix_lse.stride(),
        )
        block = triton.next_power_of_2(value_dim)
        _merge[(triton.cdiv(num_tokens * num_heads, rows),)](
            *tensors,
            num_tokens,
            num_heads,
            merged,
            *strides,
            V=value_dim,
            BLOCK_V=block,
            BLOCK_ROWS=rows,
            num_warps=4,
        )
    return out, lse
