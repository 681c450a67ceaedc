"""Triton kernels of `merge_attn_states` that begin before their predecessor has ended: sound, and
with one error each.

`early-waits` is sound. `early-reads` does not wait. `early-overreads` waits, and reads one lse past
the end.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import cuda

from harness import kernel


@triton.jit
def _merge(
    prefix_out,
    prefix_lse,
    suffix_out,
    suffix_lse,
    out,
    lse,
    num_tokens,
    num_merged,
    num_heads,
    prefix_token,
    prefix_head,
    suffix_token,
    suffix_head,
    prefix_lse_head,
    prefix_lse_token,
    suffix_lse_head,
    suffix_lse_token,
    scratch,
    past,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    WAITS: tl.constexpr,
    OVERREADS: tl.constexpr,
):
    if WAITS:
        cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    token, head, inf = row // num_heads, row % num_heads, float("inf")
    columns = tl.arange(0, BLOCK)
    s_raw = tl.load(suffix_lse + head * suffix_lse_head + token * suffix_lse_token)
    p_raw = tl.load(
        prefix_lse + head * prefix_lse_head + token * prefix_lse_token,
        mask=token < num_merged,
        other=-inf,
    )
    if OVERREADS:
        tl.store(scratch + row, tl.load(suffix_lse + past))
    p_lse = tl.where(p_raw == inf, -inf, p_raw)
    s_lse = tl.where(s_raw == inf, -inf, s_raw)
    top = tl.maximum(p_lse, s_lse)
    shift = tl.where(top == -inf, 0.0, top)
    p_sum, s_sum = tl.exp(p_lse - shift), tl.exp(s_lse - shift)
    total = p_sum + s_sum
    divisor = tl.where(total > 0.0, total, 1.0)
    in_value = columns < V
    p_at = prefix_out + token * prefix_token + head * prefix_head + columns
    s_at = suffix_out + token * suffix_token + head * suffix_head + columns
    copied = token >= num_merged
    p = tl.load(p_at, mask=in_value & (p_sum > 0.0), other=0.0).to(tl.float32)
    s = tl.load(s_at, mask=in_value & ((s_sum > 0.0) | copied), other=0.0).to(tl.float32)
    blend = tl.where(copied, s, p * (p_sum / divisor) + s * (s_sum / divisor))
    merged = tl.where(total > 0.0, shift + tl.log(divisor), -inf)
    tl.store(lse + head * num_tokens + token, tl.where(copied, s_raw, merged))
    tl.store(out + row * V + columns, blend.to(out.dtype.element_ty), mask=in_value)


def _launch(
    prefix_out: Tensor,
    prefix_lse: Tensor,
    suffix_out: Tensor,
    suffix_lse: Tensor,
    *,
    num_tokens_with_context: int | None = None,
    waits: bool = True,
    overreads: bool = False,
) -> tuple[Tensor, Tensor]:
    tokens, heads, width = prefix_out.shape
    merged = tokens if num_tokens_with_context is None else num_tokens_with_context
    out = torch.empty((tokens, heads, width), dtype=prefix_out.dtype, device=prefix_out.device)
    lse = torch.empty((heads, tokens), dtype=torch.float32, device=prefix_out.device)
    scratch = torch.empty(tokens * heads, dtype=torch.float32, device=prefix_out.device)
    # The next multiple of 16 bytes after the last lse.
    past = -(-suffix_lse.numel() // 4) * 4
    _merge[(tokens * heads,)](
        prefix_out,
        prefix_lse,
        suffix_out,
        suffix_lse,
        out,
        lse,
        tokens,
        merged,
        heads,
        *prefix_out.stride()[:2],
        *suffix_out.stride()[:2],
        *prefix_lse.stride(),
        *suffix_lse.stride(),
        scratch,
        past,
        V=width,
        BLOCK=triton.next_power_of_2(width),
        WAITS=waits,
        OVERREADS=overreads,
        launch_pdl=True,
    )
    return out, lse


def _register(name: str, **options: Any) -> None:
    def merge(
        prefix_out: Tensor,
        prefix_lse: Tensor,
        suffix_out: Tensor,
        suffix_lse: Tensor,
        *,
        num_tokens_with_context: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        launch = partial(_launch, num_tokens_with_context=num_tokens_with_context, **options)
        return launch(prefix_out, prefix_lse, suffix_out, suffix_lse)

    kernel(op="merge_attn_states", name=name, devices=("cuda",))(merge)


_register("early-waits")
_register("early-reads", waits=False)
_register("early-overreads", overreads=True)
