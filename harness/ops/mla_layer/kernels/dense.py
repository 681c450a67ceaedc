"""An MLA layer in torch, with keys and values of all heads."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from harness.kernels.checks import check_range


def mla_layer(
    hidden: Tensor,
    seq_lens: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_a_proj: Tensor,
    q_a_layernorm: Tensor,
    q_b_proj: Tensor,
    kv_a_proj: Tensor,
    kv_a_layernorm: Tensor,
    kv_b_proj: Tensor,
    o_proj: Tensor,
    *,
    num_heads: int,
    scale: float,
    epsilon: float,
) -> Tensor:
    """hidden [B, S, U] float32 of prompts of seq_lens [B] int32 -> out [B, S, U] float32.

    The weights are those of the contract. Raises ValueError for a length past S, and for
    another dtype than that of the weights. Source: DeepSeek-V2, arXiv 2405.04434.
    """
    batch, num_tokens, _ = hidden.shape
    if hidden.dtype != q_a_proj.dtype:
        raise ValueError(f"hidden is {hidden.dtype}, and the weights are {q_a_proj.dtype}")
    for length in seq_lens.tolist():
        check_range("seq_lens", length, 0, num_tokens)
    is_live = torch.arange(num_tokens, device=hidden.device) < seq_lens[:, None]
    # A weight of 0 does not remove a NaN, so nothing of the padding goes on.
    hidden = torch.where(is_live[..., None], hidden, 0.0)
    rank = len(kv_a_layernorm)
    rope = kv_a_proj.shape[0] - rank

    queries = functional.linear(
        functional.rms_norm(hidden @ q_a_proj.T, (len(q_a_layernorm),), q_a_layernorm, epsilon),
        q_b_proj,
    ).view(batch, num_tokens, num_heads, -1)
    q_rope = _turned(queries[..., -rope:], cos[:, None], sin[:, None])
    queries = torch.cat((queries[..., :-rope], q_rope), dim=-1)

    latents = hidden @ kv_a_proj.T
    k_rope = _turned(latents[..., rank:], cos, sin)[:, :, None].expand(-1, -1, num_heads, -1)
    latents = functional.rms_norm(latents[..., :rank], (rank,), kv_a_layernorm, epsilon)
    keys = functional.linear(latents, kv_b_proj).view(batch, num_tokens, num_heads, -1)
    nope = queries.shape[-1] - rope
    values = keys[..., nope:]
    keys = torch.cat((keys[..., :nope], k_rope), dim=-1)

    scores = torch.einsum("bshd,bthd->bhst", queries, keys) * scale
    later = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=hidden.device).triu(1)
    weights = scores.masked_fill(later, float("-inf")).softmax(dim=-1)
    attended = torch.einsum("bhst,bthv->bshv", weights, values)
    return functional.linear(attended.flatten(2), o_proj)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Each pair of x [..., E] turned by its angle, of cos and sin [..., E / 2]."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
