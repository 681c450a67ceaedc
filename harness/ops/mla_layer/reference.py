"""The reference of `mla_layer`, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.ops.mla_layer.inputs import LayerInputs


def expected(given: LayerInputs) -> Tensor:
    """The layer of DeepSeek-V2 (arXiv 2405.04434), a prompt at a time: out [B, S, U] float64 of
    hidden [B, S, U] float32 and the weights. Rows of padding are 0.
    """
    out = torch.zeros(given.hidden.shape, dtype=torch.float64, device=given.hidden.device)
    for b, length in enumerate(given.seq_lens.tolist()):
        # A call with a corrupted length may have a prompt of no token.
        if length:
            out[b, :length] = _prompt(given, given.hidden[b, :length].double())
    return out


def _prompt(given: LayerInputs, hidden: Tensor) -> Tensor:
    """One prompt: hidden [S, U] float64 -> [S, U] float64."""
    num_tokens = len(hidden)
    num_heads = given.num_heads
    rank = len(given.kv_a_layernorm)
    rope = given.kv_a_proj.shape[0] - rank
    cos = given.cos[:num_tokens].double()
    sin = given.sin[:num_tokens].double()

    queries = _normalised(hidden @ given.q_a_proj.double().T, given.q_a_layernorm, given.epsilon)
    queries = (queries @ given.q_b_proj.double().T).view(num_tokens, num_heads, -1)
    q_nope, q_rope = queries[..., :-rope], _turned(queries[..., -rope:], cos[:, None], sin[:, None])

    latents = hidden @ given.kv_a_proj.double().T
    k_rope = _turned(latents[:, rank:], cos, sin)
    latents = _normalised(latents[:, :rank], given.kv_a_layernorm, given.epsilon)
    keys = (latents @ given.kv_b_proj.double().T).view(num_tokens, num_heads, -1)
    nope = q_nope.shape[-1]
    k_nope, values = keys[..., :nope], keys[..., nope:]

    scores = torch.einsum("shf,thf->hst", q_nope, k_nope)
    scores = (scores + torch.einsum("she,te->hst", q_rope, k_rope)) * given.scale
    later = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=hidden.device).triu(1)
    weights = scores.masked_fill(later, float("-inf")).softmax(dim=-1)
    attended = torch.einsum("hst,thv->shv", weights, values)
    return attended.flatten(1) @ given.o_proj.double().T


def _normalised(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x [S, n] float64 over the root mean square of its row, times weight [n]."""
    return x * (x.square().mean(dim=-1, keepdim=True) + epsilon).rsqrt() * weight.double()


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Each pair of x [..., E] float64 turned by its angle, of cos and sin [..., E / 2]."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
