"""The gated delta rule with a decay for each key channel (Kimi Linear, arXiv 2510.26692), in two forms.

For one head with state S [dk, dv], each token computes

    S <- diag(exp(g)) S;   S <- S + beta * k (v - k^T S)^T;   out = S^T (q * scale)

`recurrent` runs token by token. `chunked` runs on matrix products, for training: inside a chunk the corrections
`u = beta * (v - k^T S)` solve a triangular system, and one state a chunk is carried on.
Both need float32 or float64, and log decays g <= 0.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK_SIZE = 16


def recurrent(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Token by token. Returns out [B, T, H, dv] and the state after the last token (a new tensor).

    q, k, g: [B, T, H, dk] (q scaled, q and k l2-normalised); v: [B, T, H, dv]; beta: [B, T, H]; state: [B, H, dk, dv].
    """
    out = []
    for t in range(q.shape[1]):
        state = state * g[:, t].exp().unsqueeze(-1)
        error = v[:, t] - torch.einsum("bhk,bhkv->bhv", k[:, t], state)
        state = state + k[:, t].unsqueeze(-1) * (beta[:, t].unsqueeze(-1) * error).unsqueeze(-2)
        out.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(out, dim=1), state


def chunked(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """As `recurrent`, chunk by chunk, up to rounding. Differentiable, for any T."""
    length = q.shape[1]
    padding = -length % CHUNK_SIZE

    def split(x: Tensor) -> Tensor:
        # [B, T, H, D] -> [B, H, N, C, D]. Padded tokens have k = 0 and g = 0, so they do not change the state.
        padded = F.pad(x, (0, 0, 0, 0, 0, padding))
        chunks = padded.view(x.shape[0], -1, CHUNK_SIZE, *x.shape[2:])
        return chunks.permute(0, 3, 1, 2, 4)

    q, k, v, g, beta = split(q), split(k), split(v), split(g), split(beta.unsqueeze(-1))
    decay = g.cumsum(dim=-2)
    lower = torch.ones(CHUNK_SIZE, CHUNK_SIZE, dtype=torch.bool, device=q.device).tril()
    # exp(decay_i) alone may overflow; exp of the difference cannot.
    difference = decay.unsqueeze(-2) - decay.unsqueeze(-3)
    between = difference.masked_fill(~lower.unsqueeze(-1), -torch.inf).exp() * k.unsqueeze(-3)
    scores = between @ torch.stack((k, q), dim=-1)  # [B, H, N, C(i), C(j), 2]
    k_scores, q_scores = scores.unbind(-1)

    system = beta * k_scores.tril(-1) + torch.eye(CHUNK_SIZE, dtype=q.dtype, device=q.device)
    decayed = decay.exp()
    right = torch.cat((beta * v, beta * k * decayed), dim=-1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    own, from_state = solved.split((v.shape[-1], k.shape[-1]), dim=-1)
    q_decayed = q * decayed
    k_to_end = (k * (decay[..., -1:, :] - decay).exp()).transpose(-1, -2)
    whole = decayed[..., -1, :].unsqueeze(-1)

    out = []
    for n in range(q.shape[2]):
        u = own[:, :, n] - from_state[:, :, n] @ state
        out.append(q_decayed[:, :, n] @ state + q_scores[:, :, n] @ u)
        state = whole[:, :, n] * state + k_to_end[:, :, n] @ u
    merged = torch.stack(out, dim=2).permute(0, 2, 3, 1, 4).flatten(1, 2)
    return merged[:, :length], state
