"""vLLM's `merge_attn_states`: the CUDA kernel, and the Triton kernel for what the CUDA kernel cannot merge."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor


def merge_attn_states(*states: Tensor, num_tokens_with_context: int | None = None) -> tuple[Tensor, Tensor]:
    """The CUDA kernel of vllm._custom_ops: prefix out [T, H, V], prefix lse [H, T] float32, suffix out, suffix lse."""
    return _merged("vllm._custom_ops", *states, count=num_tokens_with_context)


def merge_attn_states_triton(*states: Tensor, num_tokens_with_context: int | None = None) -> tuple[Tensor, Tensor]:
    """The Triton kernel. Same shapes."""
    return _merged("vllm.v1.attention.ops.triton_merge_attn_states", *states, count=num_tokens_with_context)


def _merged(
    module: str, prefix_out: Tensor, prefix_lse: Tensor, suffix_out: Tensor, suffix_lse: Tensor, *, count: int | None
) -> tuple[Tensor, Tensor]:
    merge: Any = importlib.import_module(module).merge_attn_states
    out, lse = torch.empty_like(prefix_out), torch.empty_like(prefix_lse)
    merge(
        output=out,
        prefix_output=prefix_out,
        prefix_lse=prefix_lse,
        suffix_output=suffix_out,
        suffix_lse=suffix_lse,
        output_lse=lse,
        prefill_tokens_with_context=count,
    )
    return out, lse
