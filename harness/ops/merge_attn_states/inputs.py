"""Seeded inputs of `merge_attn_states`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.ops.merge_attn_states.params import MergeAttnStatesParams
from harness.ops.parts.inputs import OpInputs, Unowned, randn


@dataclass(slots=True)
class MergeInputs(OpInputs):
    """Arguments of `merge_attn_states`."""

    prefix_out: Tensor
    prefix_lse: Tensor
    suffix_out: Tensor
    suffix_lse: Tensor
    num_tokens_with_context: int


def draw(params: MergeAttnStatesParams, seed: int) -> MergeInputs:
    """Two partial attentions.

    The last `empty_prefix_rows` rows with context have an empty prefix, the last
    `empty_suffix_rows` an empty suffix.
    """
    num_tokens = params.num_tokens
    merged = params.num_with_context
    generator = torch.Generator().manual_seed(seed)
    out_shape = (num_tokens, params.num_heads, params.v_head_dim)
    lse_shape = (params.num_heads, num_tokens)
    pads: list[Unowned] = []
    prefix_out = _columns(
        randn(out_shape, torch.bfloat16, generator), params.padded == "both", pads
    )
    prefix_lse = randn(lse_shape, torch.float32, generator) * 2 + params.lse_gap * (
        -1
    ) ** torch.arange(num_tokens)
    first_empty = merged - params.empty_prefix_rows
    prefix_lse[:, first_empty:merged] = float(params.empty_lse)
    suffix_out = _columns(
        randn(out_shape, torch.bfloat16, generator), params.padded != "none", pads
    )
    suffix_lse = randn(lse_shape, torch.float32, generator) * 2
    first_without_suffix = merged - params.empty_suffix_rows
    suffix_lse[:, first_without_suffix:merged] = float(params.empty_lse)
    for t in range(merged if params.sides else 0):
        word = params.sides[t % len(params.sides)]
        if word == "equal":
            prefix_lse[:, t] = suffix_lse[:, t]
        for name, lse, out in (
            ("prefix", prefix_lse, prefix_out),
            ("suffix", suffix_lse, suffix_out),
        ):
            if word == f"{name}_above":
                lse[:, t] += 200.0
            elif word == "low":
                lse[:, t] -= 200.0
            elif word in (f"no_{name}", "neither"):
                lse[:, t] = float(params.empty_lse)
                # A kernel leaves the output of a side without keys as memory was.
                pads.append(Unowned("context.output", out[t]))
    return MergeInputs(
        prefix_out=prefix_out,
        prefix_lse=prefix_lse,
        suffix_out=suffix_out,
        suffix_lse=suffix_lse,
        num_tokens_with_context=merged,
        unowned=[
            *pads,
            Unowned("context.output", suffix_out[first_without_suffix:merged]),
            Unowned("context.output", prefix_out[first_empty:]),
            Unowned("context.lse", prefix_lse[:, merged:]),
        ],
    )


def _columns(values: Tensor, is_padded: bool, pads: list[Unowned]) -> Tensor:
    """`values` [T, H, V]; with padding as the first columns of a wider tensor.

    Adds the other columns to `pads`.
    """
    if not is_padded:
        return values
    width = values.shape[-1]
    wide = values.new_zeros(*values.shape[:-1], width + width // 2)
    wide[..., :width] = values
    pads.append(Unowned("context.pad", wide[..., width:]))
    return wide[..., :width]
