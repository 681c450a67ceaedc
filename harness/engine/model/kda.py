"""Kimi Delta Attention (Kimi Linear, arXiv 2510.26692): a fixed state instead of a cache of
tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from harness.engine.model.layers import compute_dtype
from harness.engine.schedule.config import EngineModelConfig

CHUNK_SIZE = 16


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The gated delta rule with a decay for each key channel, token by token.

    For one head with state S [dk, dv], each token computes

        S <- diag(exp(g)) S;   S <- S + beta * k (v - k^T S)^T;   out = S^T q

    q, k, g: [B, T, H, dk] (q scaled, q and k l2-normalised, log decay g <= 0); v: [B, T, H, dv];
    beta: [B, T, H]; state: [B, H, dk, dv]; all float32 or float64. Returns out [B, T, H, dv] and
    the last state (a new tensor).
    """
    out = []
    # Rows and columns of each token, made for all at once: a step of the loop is a few small ops.
    decays = g.exp().unsqueeze(-1)
    q_rows = q.unsqueeze(-2)
    k_rows = k.unsqueeze(-2)
    v_rows = v.unsqueeze(-2)
    k_columns = k.unsqueeze(-1)
    steps = beta[..., None, None]
    for t in range(q.shape[1]):
        state = state * decays[:, t]
        error = v_rows[:, t] - k_rows[:, t] @ state
        state = state + k_columns[:, t] * (steps[:, t] * error)
        out.append(q_rows[:, t] @ state)
    return torch.stack(out, dim=1).squeeze(-2), state


def chunked(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """As `recurrent`, with its shapes, up to rounding, on matrix products, for training.

    Differentiable, for any T.

    Inside a chunk the corrections `u = beta * (v - k^T S)` solve a triangular system. One state a
    chunk is carried on.

    q, k [B, T, H, dk], v [B, T, H, dv], g [B, T, H, dk], beta [B, T, H] and state [B, H, dk, dv]
    are float32 or wider.
    """
    length = q.shape[1]
    padding = -length % CHUNK_SIZE

    def split(x: Tensor) -> Tensor:
        """[B, T, H, D] -> [B, H, N, C, D].

        Padded tokens have k = 0 and g = 0, so they do not change the state.
        """
        padded = F.pad(x, (0, 0, 0, 0, 0, padding))
        chunks = padded.view(x.shape[0], -1, CHUNK_SIZE, *x.shape[2:])
        return chunks.permute(0, 3, 1, 2, 4)

    q = split(q)
    k = split(k)
    v = split(v)
    g = split(g)
    beta = split(beta.unsqueeze(-1))
    # Decays add up as logarithms within a chunk; their product would underflow.
    decay = g.cumsum(dim=-2)
    lower = torch.ones(CHUNK_SIZE, CHUNK_SIZE, dtype=torch.bool, device=q.device).tril()
    # exp(decay_i) alone may overflow; exp of the difference cannot.
    difference = decay.unsqueeze(-2) - decay.unsqueeze(-3)
    between = difference.masked_fill(~lower.unsqueeze(-1), -torch.inf).exp() * k.unsqueeze(-3)
    scores = between @ torch.stack((k, q), dim=-1)  # [B, H, N, C(i), C(j), 2]
    k_scores, q_scores = scores.unbind(-1)

    # Token i corrects what tokens j < i of its chunk have stored: a triangular system, solved at
    # once.
    system = beta * k_scores.tril(-1) + torch.eye(CHUNK_SIZE, dtype=q.dtype, device=q.device)
    # The corrections are affine in the state S that a chunk begins with: u = own - from_state @ S.
    # So both parts are solved here for all chunks at once, and the loop below only multiplies.
    decayed = decay.exp()
    right = torch.cat((beta * v, beta * k * decayed), dim=-1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    own, from_state = solved.split((v.shape[-1], k.shape[-1]), dim=-1)
    q_decayed = q * decayed
    # From each token to the end of the chunk. The difference is never positive: exp is at most 1.
    k_to_end = (k * (decay[..., -1:, :] - decay).exp()).transpose(-1, -2)
    whole = decayed[..., -1, :].unsqueeze(-1)

    out = []
    for n in range(q.shape[2]):
        u = own[:, :, n] - from_state[:, :, n] @ state
        out.append(q_decayed[:, :, n] @ state + q_scores[:, :, n] @ u)
        state = whole[:, :, n] * state + k_to_end[:, :, n] @ u
    merged = torch.stack(out, dim=2).permute(0, 2, 3, 1, 4).flatten(1, 2)
    # The padded tokens of the last chunk changed no state, and their rows are cut off.
    return merged[:, :length], state


L2_NORM_EPS = 1e-6


class ShortConv(nn.Module):
    """The weight [channels, 1, kernel] of a depthwise causal convolution."""

    def __init__(self, channels: int, kernel_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, kernel_size))


class GatedRMSNorm(nn.Module):
    """`rmsnorm(x) * weight * sigmoid(gate)` over the last dimension, in float32 or wider."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """x and gate [..., dim] -> [..., dim] in the dtype of x; the norm is computed in float32 or
        wider.
        """
        wide = x.to(compute_dtype(x.dtype))
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps) * self.weight
        return (wide * gate.to(wide.dtype).sigmoid()).to(x.dtype)


class KimiDeltaAttention(nn.Module):
    """One KDA layer. Parameters have the names of Hugging Face's Kimi Linear.

    H = kda_num_heads, dk = dv = kda_head_dim, P = H * dk, W = conv_kernel_size. The state of a
    request is `conv_state` [3P, W - 1] (the last inputs of the q, k and v convolutions, oldest
    first, in the model's dtype) and `ssm_state` [H, dk, dv] float32. Both start from zeros.
    """

    def __init__(self, config: EngineModelConfig) -> None:
        super().__init__()
        self.num_heads = config.kda_num_heads
        self.head_dim = config.kda_head_dim
        self.conv_kernel_size = config.conv_kernel_size
        hidden = config.hidden_size
        width = config.kda_num_heads * config.kda_head_dim
        self.width = width
        self.q_proj = nn.Linear(hidden, width, bias=False)
        self.k_proj = nn.Linear(hidden, width, bias=False)
        self.v_proj = nn.Linear(hidden, width, bias=False)
        self.q_conv1d = ShortConv(width, config.conv_kernel_size)
        self.k_conv1d = ShortConv(width, config.conv_kernel_size)
        self.v_conv1d = ShortConv(width, config.conv_kernel_size)
        self.f_a_proj = nn.Linear(hidden, self.head_dim, bias=False)
        self.f_b_proj = nn.Linear(self.head_dim, width, bias=False)
        self.A_log = nn.Parameter(torch.empty(1, 1, self.num_heads, 1))
        self.dt_bias = nn.Parameter(torch.empty(width))
        self.b_proj = nn.Linear(hidden, self.num_heads, bias=False)
        self.g_a_proj = nn.Linear(hidden, self.head_dim, bias=False)
        self.g_b_proj = nn.Linear(self.head_dim, width, bias=False)
        self.o_norm = GatedRMSNorm(self.head_dim, config.rms_norm_eps)
        self.o_proj = nn.Linear(width, hidden, bias=False)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {
            "conv": (3 * self.width, self.conv_kernel_size - 1),
            "ssm": (self.num_heads, self.head_dim, self.head_dim),
        }

    def forward(self, x: Tensor) -> Tensor:
        """Whole sequences from zero states. x: [B, T, hidden] -> [B, T, hidden], in the weights'
        dtype. Differentiable.

        The recurrence runs in float32 or wider.
        """
        wide = compute_dtype(x.dtype)
        conv = x.new_zeros(x.shape[0], *self.state_shapes()["conv"])
        state = x.new_zeros(x.shape[0], *self.state_shapes()["ssm"], dtype=wide)
        q, k, v, _ = self._mix(x, conv)
        g, beta = self.gates(x)
        # Autocast would run the recurrence in bfloat16, where errors add up over a sequence.
        with torch.autocast(x.device.type, enabled=False):
            out, _ = chunked(q, k, v, g, beta, state)
        return self._project_out(out, x)

    def step(self, x: Tensor, conv_state: Tensor, ssm_state: Tensor) -> Tensor:
        """`step_batch` for one request: x [T, hidden], conv_state [3P, W - 1], ssm_state [H, dk,
        dv] float32 -> [T, hidden].
        """
        return self.step_batch(
            x.unsqueeze(0), conv_state.unsqueeze(0), ssm_state.unsqueeze(0)
        ).squeeze(0)

    def step_batch(self, x: Tensor, conv_state: Tensor, ssm_state: Tensor) -> Tensor:
        """The next T tokens of each of B requests -> [B, T, hidden]. Updates both states in place.

        x: [B, T, hidden], conv_state: [B, 3P, W - 1], ssm_state: [B, H, dk, dv].

        x has the weights' dtype; ssm_state is float32.
        """
        q, k, v, last_inputs = self._mix(x, conv_state)
        out, state = recurrent(q, k, v, *self.gates(x), ssm_state.to(q.dtype))
        conv_state.copy_(last_inputs)
        ssm_state.copy_(state)
        return self._project_out(out, x)

    def _mix(self, x: Tensor, conv_state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x: [B, T, hidden], conv_state: [B, 3P, W - 1] -> q, k, v [B, T, H, dk] and the new conv
        state.
        """
        inputs = torch.cat((self.q_proj(x), self.k_proj(x), self.v_proj(x)), dim=-1).transpose(1, 2)
        window = torch.cat((conv_state.to(inputs.dtype), inputs), dim=-1)
        weight = torch.cat((self.q_conv1d.weight, self.k_conv1d.weight, self.v_conv1d.weight))
        wide = compute_dtype(x.dtype)
        # A depthwise kernel of four taps is four products. torch's grouped convolution is far
        # slower.
        length = inputs.shape[-1]
        taps = [
            window[..., i : i + length].to(wide) * weight[:, :, i].to(wide)
            for i in range(weight.shape[-1])
        ]
        mixed = torch.stack(taps).sum(dim=0)
        # Serving kernels return q, k and v in the model's dtype, so the reference rounds too.
        mixed = F.silu(mixed).to(x.dtype).to(wide).transpose(1, 2)
        q, k, v = mixed.reshape(*x.shape[:2], 3, self.num_heads, self.head_dim).unbind(-3)
        last_inputs = window[..., window.shape[-1] - (self.conv_kernel_size - 1) :]
        # A key of length 1 makes the update a projection, which cannot blow the state up.
        return _l2_normalise(q) * self.head_dim**-0.5, _l2_normalise(k), v, last_inputs

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x: [B, T, hidden] -> log decay g [B, T, H, dk] <= 0 and step size beta [B, T, H], in the
        compute dtype.
        """
        wide = compute_dtype(x.dtype)
        raw = self.f_b_proj(self.f_a_proj(x)).to(wide) + self.dt_bias.to(wide)
        raw = raw.unflatten(-1, (self.num_heads, self.head_dim))
        return -self.A_log.to(wide).exp() * F.softplus(raw), self.b_proj(x).to(wide).sigmoid()

    def _project_out(self, out: Tensor, x: Tensor) -> Tensor:
        """out: [B, T, H, dv] -> [B, T, hidden], normalised and gated."""
        gate = self.g_b_proj(self.g_a_proj(x)).unflatten(-1, (self.num_heads, self.head_dim))
        projected: Tensor = self.o_proj(self.o_norm(out.to(x.dtype), gate).flatten(-2))
        return projected


def _l2_normalise(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_NORM_EPS)
